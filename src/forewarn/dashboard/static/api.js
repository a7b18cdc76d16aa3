// The API's own description, to read and to try.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, tryItOutEnabled: false });
