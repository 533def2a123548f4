"""Who may ask: the Host header, web pages of other origins (CORS), the API key, and the type of the body.

A web page of any site can send requests to 127.0.0.1 once its own name resolves to that address (DNS rebinding); its
requests still carry the name of that site. A server that listens on this machine alone therefore answers for the names
of this machine alone. One that listens on other addresses is reached under names that it can't know, so it answers for
all of them unless `--allow-host` names some.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence

from posrec.server.http.messages import Answer, Header, Refused, Request
from posrec.server.settings import ServerSettings

LOCAL = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
JSON_TYPE = b"application/json"
# Content types that are accepted for JSON where nothing is written. `fetch` and `curl -d` send text and form types by
# default.
READING_TYPES = (b"", JSON_TYPE, b"text/plain", b"application/x-www-form-urlencoded")
OTHER_ORIGIN = "web pages of this origin are not allowed; see --allow-origin"
PUBLIC_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # need no API key


class Access:
    """The checks that every request passes. An asterisk in an allowed origin matches anything."""

    def __init__(self, settings: ServerSettings) -> None:
        self.hosts = frozenset(settings.allow_host)
        self.key = None if settings.api_key is None else settings.api_key.encode()
        self.every_origin = ANY in settings.allow_origin
        patterns = [re.escape(origin).replace(r"\*", ".*") for origin in settings.allow_origin]
        self.origins = re.compile("|".join(patterns)) if patterns else None

    def check(self, request: Request) -> Answer | None:
        """Refuse what may not be asked. Returns the answer to a browser's question before a request (a preflight)."""
        if not self.allows_host(request):
            raise Refused(400, "the Host header is missing or names a host that --allow-host does not allow")
        origin = request.headers.get(b"origin")
        if self.origins is not None and origin is not None and request.method == "OPTIONS":
            return self.preflight(request, origin)  # it is sent without the key
        if self.key is not None and request.path not in PUBLIC_PATHS and not self.has_key(request.headers):
            raise Refused(401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")
        if request.method == "POST" and request.path.startswith("/v1/"):
            check_content_type(request, READING_TYPES)
        return None

    def check_writing(self, request: Request) -> None:
        """Refuse what a web page of another site can send: without asking first, a browser sends any page's text and
        forms, and with them the origin of the page."""
        if request.method == "POST":
            check_content_type(request, (JSON_TYPE,))
        origin = request.headers.get(b"origin")
        if origin is None or self.allows_origin(origin):
            return
        host = request.headers.get(b"host")
        if not host or origin.partition(b"://")[2].lower() != host.lower():  # of a page of this server
            raise Refused(403, OTHER_ORIGIN)

    def allows_host(self, request: Request) -> bool:
        """HTTP/1.1 requires exactly one Host header. HTTP/1.0 may omit it: no browser speaks it, and some health checks
        do."""
        host, headers = request.headers.get(b"host"), request.all_headers
        if host is None:
            return request.version != "1.1"
        if len(request.headers) != len(headers) and sum(name == b"host" for name, _ in headers) > 1:
            return False
        return not self.hosts or host_name(host.decode("latin-1")) in self.hosts

    def allows_origin(self, origin: bytes) -> bool:
        return self.origins is not None and self.origins.fullmatch(origin.decode("latin-1")) is not None

    def preflight(self, request: Request, origin: bytes) -> Answer:
        if not self.allows_origin(origin):
            raise Refused(400, OTHER_ORIGIN)
        headers = [
            (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
            (b"access-control-max-age", b"600"),
        ]
        if (names := request.headers.get(b"access-control-request-headers")) is not None:
            headers.append((b"access-control-allow-headers", names))
        return Answer(204, headers=tuple(headers))

    def origin_headers(self, origin: bytes | None) -> tuple[Header, ...]:
        """What every answer needs, errors too, so that a page of an allowed origin can read it."""
        if self.origins is None or origin is None:
            return ()
        if not self.allows_origin(origin):
            return ((b"vary", b"Origin"),)
        allowed = (b"access-control-allow-origin", b"*" if self.every_origin else origin)
        return allowed, (b"vary", b"Origin"), (b"access-control-expose-headers", b"Retry-After")

    def has_key(self, headers: dict[bytes, bytes]) -> bool:
        """Compares once for each request: X-API-Key where it is sent, otherwise Authorization."""
        given = headers.get(b"x-api-key")
        if given is None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                return False
        assert self.key is not None
        return hmac.compare_digest(given, self.key)


def check_content_type(request: Request, accepted: Sequence[bytes]) -> None:
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind not in accepted and not kind.endswith(b"+json"):
        sent = kind[:100].decode("latin-1") or "of no type"
        raise Refused(415, f"the body must be JSON (application/json), not {sent}")


def allowed_hosts(listening: str, given: Sequence[str]) -> tuple[str, ...]:
    """The names that are answered for; none means any.

    >>> allowed_hosts("127.0.0.1", [])
    ('localhost', '127.0.0.1', '[::1]')
    >>> allowed_hosts("0.0.0.0", []), allowed_hosts("127.0.0.1", ["*"])
    ((), ())
    >>> allowed_hosts("0.0.0.0", ["Shop.example"])
    ('localhost', '127.0.0.1', '[::1]', 'shop.example')
    """
    if ANY in given or (not given and not is_loopback(listening)):
        return ()
    own = (f"[{listening}]" if ":" in listening else listening,) if is_loopback(listening) else ()
    return tuple(dict.fromkeys((*LOCAL, *own, *(name.lower().rstrip(".") for name in given))))


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def host_name(host: str) -> str:
    """The name in a Host header, without the port.

    >>> [host_name(host) for host in ("LocalHost:8000", "[::1]:8000", "shop.example.")]
    ['localhost', '[::1]', 'shop.example']
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdigit() or not port) else host).lower().rstrip(".")
