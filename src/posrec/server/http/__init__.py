"""One request over HTTP: who may ask, its body, its operation and answer, and the OpenAPI document."""
