"""Cross-origin requests (CORS): which web pages may use the server, and how a browser learns it.

Every answer needs these headers, also errors and preflights that have no API key yet, so the middleware adds them to
whatever is answered. Litestar's own CORS support covers the answers of its routes alone; its rules are used here.
"""

from collections.abc import Sequence

from litestar.config.cors import CORSConfig

Header = tuple[bytes, bytes]


class CrossOrigin:
    """`origins`: those that are allowed, such as https://shop.example; an asterisk matches anything."""

    def __init__(self, origins: Sequence[str]) -> None:
        self.rules = CORSConfig(list(origins), expose_headers=["Retry-After"])

    def allows(self, origin: bytes) -> bool:
        return self.rules.is_origin_allowed(origin.decode("latin-1"))

    def headers(self, origin: bytes) -> list[Header]:
        """For the answer to a request of a page of this origin."""
        if not self.allows(origin):
            return [(b"vary", b"Origin")]
        every = self.rules.is_allow_all_origins
        allowed = [(b"access-control-allow-origin", b"*" if every else origin), (b"vary", b"Origin")]
        return [*allowed, (b"access-control-expose-headers", b"Retry-After")]

    def preflight_headers(self, request: dict[bytes, bytes]) -> list[Header]:
        """More headers for the answer to the OPTIONS request that a browser sends before the actual one."""
        about = self.rules.preflight_headers
        named = ("Access-Control-Max-Age", "Access-Control-Allow-Methods")
        allowed = [(name.lower().encode(), about[name].encode()) for name in named]
        if wanted := request.get(b"access-control-request-headers"):
            allowed.append((b"access-control-allow-headers", wanted))
        return allowed
