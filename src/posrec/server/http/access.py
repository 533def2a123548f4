"""Who may ask: the Host header, the API key, and web pages that write.

A web page of any site can send requests to 127.0.0.1 once its own name resolves to that address
(DNS rebinding); its requests still carry the name of that site. A server that listens on this
machine alone therefore answers for the names of this machine alone. Any other server is reached
under names that it can't know, so it answers for all of them unless `--allow-host` names some.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from posrec.server.errors import Refused
from posrec.server.http.responses import error_response
from posrec.server.settings import ServerSettings

LOCAL = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
PUBLIC_PATHS = (
    "/",
    "/healthz",
    "/readyz",
    "/docs",
    "/openapi/openapi.json",
)  # need no API key
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class AccessRules:
    def __init__(self, settings: ServerSettings) -> None:
        self.hosts = frozenset(settings.allow_host)
        self.key = None if settings.api_key is None else settings.api_key.encode()
        self.origins = origin_pattern(settings.allow_origin)

    def check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not self.allows_host(headers.getlist("host"), scope["http_version"]):
            raise Refused(
                400,
                "the Host header is missing or names a host that --allow-host does not allow",
            )
        check_encoding(scope["raw_path"])
        check_encoding(scope["query_string"])
        if (
            self.key is not None
            and scope["path"] not in PUBLIC_PATHS
            and not self.has_key(headers)
        ):
            raise Refused(
                401,
                "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
            )

    def allows_host(self, hosts: Sequence[str], version: str) -> bool:
        """HTTP/1.1 requires exactly one Host header. HTTP/1.0, which no browser speaks, may leave
        it empty."""
        if len(hosts) != 1:
            return False
        if not hosts[0]:
            return version != "1.1"
        return not self.hosts or host_name(hosts[0]) in self.hosts

    def has_key(self, headers: Headers) -> bool:
        """Compares once for each request."""
        assert self.key is not None
        sent = headers.getlist("x-api-key") or [
            key
            for scheme, _, key in (
                header.partition(" ") for header in headers.getlist("authorization")
            )
            if scheme.lower() == "bearer"
        ]
        return len(sent) == 1 and hmac.compare_digest(
            sent[0].encode("latin-1"), self.key
        )

    def check_origin(self, headers: Headers) -> None:
        """Refuse to write for web pages of other sites, whose requests carry the origin of the
        page."""
        origin = headers.get("origin")
        if origin is None or (
            self.origins is not None and re.fullmatch(self.origins, origin)
        ):
            return
        host = headers.get("host", "")
        is_own_page = host != "" and origin.partition("://")[2].lower() == host.lower()
        if not is_own_page:
            raise Refused(
                403, "web pages of this origin are not allowed; see --allow-origin"
            )


class RequireAccess:
    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self.app = app
        self.rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self.rules.check(scope)
            except Refused as reason:
                await error_response(reason)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def origin_pattern(allowed: Sequence[str]) -> str | None:
    """A regular expression; an asterisk in an allowed origin matches anything.

    >>> origin_pattern(["https://shop.example", "http://*.test"])
    'https://shop\\\\.example|http://.*\\\\.test'
    """
    return (
        "|".join(re.escape(origin).replace(r"\*", ".*") for origin in allowed) or None
    )


def check_encoding(address: bytes) -> None:
    """Bytes that are not UTF-8 would become the same character, and the id of one session would
    stand for another."""
    if b"%" in address:
        try:
            unquote_to_bytes(address).decode()
        except UnicodeDecodeError:
            raise Refused(400, "the address must be percent-encoded UTF-8") from None


def allowed_hosts(listening: str, given: Sequence[str]) -> tuple[str, ...]:
    """The names that are answered for; none means any.

    >>> allowed_hosts("127.0.0.1", [])
    ('localhost', '127.0.0.1', '[::1]')
    >>> allowed_hosts("0.0.0.0", ["Shop.example"])
    ('localhost', '127.0.0.1', '[::1]', 'shop.example')
    """
    if ANY in given or (not given and not is_loopback(listening)):
        return ()
    names = [*LOCAL]
    if is_loopback(listening):
        names.append(f"[{listening}]" if ":" in listening else listening)
    names += [name.lower().rstrip(".") for name in given]
    return tuple(dict.fromkeys(names))


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
    has_port = colon and (port.isdigit() or not port)
    return (name if has_port else host).lower().rstrip(".")
