// The OpenAPI document of this service, to read and to try.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, tryItOutEnabled: false });
