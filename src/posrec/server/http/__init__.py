"""One request over HTTP: its connection and limits, who may ask, the way to its route, and the OpenAPI document."""
