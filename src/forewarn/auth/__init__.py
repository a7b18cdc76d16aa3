"""Access to the control API: tokens, an OpenID Connect issuer, signed tokens, rejected calls."""
