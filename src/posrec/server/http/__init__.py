"""One request over HTTP: who may ask, its body, its operation, its answer."""
