"""Who may ask: the Host header, web pages of other origins (CORS), the API key, and the type of the body.

A web page of any site can send requests to 127.0.0.1 once its own name resolves to that address (DNS rebinding); its
requests still carry the name of that site. A server that listens on this machine alone therefore answers for the names
of this machine alone. One that listens on other addresses is reached under names that it can't know, so it answers for
all of them unless `--allow-host` names some.
"""

import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence

from posrec.server.http.messages import Answer, Header, Request, refusal
from posrec.server.settings import ServerSettings

LOCAL = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
# Content types that are accepted for JSON. `fetch` and `curl -d` send text and form types by default.
JSON_TYPES = (b"", b"application/json", b"text/plain", b"application/x-www-form-urlencoded")
PUBLIC_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")  # need no API key

Check = Callable[[Request], Answer | None]  # the answer to a request that may not be asked


def checks(settings: ServerSettings) -> list[Check]:
    """In the order in which a request passes them."""
    chain: list[Check] = [HostCheck(frozenset(settings.allow_host))]
    if settings.allow_origin:
        chain.append(CrossOrigin(settings.allow_origin).answer_preflight)
    if settings.api_key is not None:
        chain.append(KeyCheck(settings.api_key.encode()))
    return [*chain, check_content_type]


class HostCheck:
    """Accepts requests for one of `names`, with any port; for every host, where there are no names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def __call__(self, request: Request) -> Answer | None:
        if self.is_allowed(request):
            return None
        return refusal(400, "the Host header is missing or names a host that --allow-host does not allow")

    def is_allowed(self, request: Request) -> bool:
        """HTTP/1.1 requires exactly one Host header. HTTP/1.0 may omit it: no browser speaks it, and some health checks
        do."""
        host, scope = request.headers.get(b"host"), request.scope
        if host is None:
            return scope.get("http_version") != "1.1"
        if len(request.headers) != len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return False
        return not self.names or host_name(host.decode("latin-1")) in self.names


def allowed_hosts(listening: str, given: Sequence[str]) -> tuple[str, ...]:
    """The names that are answered for; none means any.

    >>> allowed_hosts("127.0.0.1", [])
    ('localhost', '127.0.0.1', '[::1]')
    >>> allowed_hosts("0.0.0.0", [])
    ()
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


class CrossOrigin:
    """Which web pages may use the server. `origins` such as https://shop.example; an asterisk matches anything."""

    def __init__(self, origins: Sequence[str]) -> None:
        self.every = ANY in origins
        self.pattern = re.compile("|".join(re.escape(origin).replace(r"\*", ".*") for origin in origins))

    def headers(self, request: Request) -> tuple[Header, ...]:
        """What every answer needs, errors too, so that a page of an allowed origin can read it."""
        origin = request.headers.get(b"origin")
        if origin is None:
            return ()
        if not self.allows(origin):
            return ((b"vary", b"Origin"),)
        allowed = (b"access-control-allow-origin", b"*" if self.every else origin)
        return allowed, (b"vary", b"Origin"), (b"access-control-expose-headers", b"Retry-After")

    def allows(self, origin: bytes) -> bool:
        return self.pattern.fullmatch(origin.decode("latin-1")) is not None

    def answer_preflight(self, request: Request) -> Answer | None:
        """A browser asks, without the key, whether it may send its request."""
        origin = request.headers.get(b"origin")
        if origin is None or request.method != "OPTIONS":
            return None
        if not self.allows(origin):
            return refusal(400, "web pages of this origin are not allowed; see --allow-origin")
        names = request.headers.get(b"access-control-request-headers")
        return Answer(204, headers=(
            (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"), (b"access-control-max-age", b"600"),
            *([] if names is None else [(b"access-control-allow-headers", names)]),
        ))  # fmt: skip


class KeyCheck:
    def __init__(self, key: bytes) -> None:
        self.key = key

    def __call__(self, request: Request) -> Answer | None:
        if request.path in PUBLIC_PATHS or self.has_key(request.headers):
            return None
        return refusal(401, "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY")

    def has_key(self, headers: dict[bytes, bytes]) -> bool:
        """Compares once for each request: X-API-Key where it is sent, otherwise Authorization."""
        given = headers.get(b"x-api-key")
        if given is None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                return False
        return hmac.compare_digest(given, self.key)


def check_content_type(request: Request) -> Answer | None:
    if request.method != "POST" or not request.path.startswith("/v1/"):
        return None
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind in JSON_TYPES or kind.endswith(b"+json"):
        return None
    return refusal(415, f"the body must be JSON (application/json), not {kind[:100].decode('latin-1')}")
