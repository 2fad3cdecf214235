"""The endpoint picker of a gateway: requests and answers as Envoy's external processing brings them."""
