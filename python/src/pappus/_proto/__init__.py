"""Messages of the protocol, generated from ``proto/pappus.proto`` by ``python/generate``."""
