"""Who may ask: the Host header, the API key, and web pages that write.

Any web page can send requests to 127.0.0.1 once the name of its site resolves to that address (DNS
rebinding), but they carry that name. A server that listens on this machine alone therefore answers
for its names alone; any other can't know its names, and answers for all unless `--allow-host` is
given.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from posrec.server.errors import Refused
from posrec.server.http.responses import HTTP_ERRORS, error_response
from posrec.server.settings import ServeOptions

LOCAL = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"
# They need no API key.
PUBLIC_PATHS = ("/", "/healthz", "/readyz", "/docs", "/openapi/openapi.json")
ENCODED_ID = re.compile(rb"/v1/(sessions|similar)/((?!%2[fF])[^/])+(/[^%]*)?")
METHODS = ("GET", "HEAD", "POST", "DELETE", "OPTIONS")


class AccessRules:
    def __init__(self, settings: ServeOptions) -> None:
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
        check_spelling(scope["raw_path"])
        check_encoding(scope["query_string"])
        if scope["path"] not in PUBLIC_PATHS and not self.has_key(headers):
            raise Refused(
                401,
                "an API key is needed: Authorization: Bearer KEY, or X-API-Key: KEY",
            )

    def allows_host(self, hosts: Sequence[str], version: str) -> bool:
        """HTTP/1.1 requires one Host header; in HTTP/1.0, which no browser speaks, it is empty."""
        if len(hosts) != 1:
            return False
        if not hosts[0]:
            return version != "1.1"
        return not self.hosts or host_name(hosts[0]) in self.hosts

    def has_key(self, headers: Headers) -> bool:
        """A request has one guess: several keys are refused."""
        if self.key is None:
            return True
        sent = headers.getlist("x-api-key")
        if not sent:
            for header in headers.getlist("authorization"):
                scheme, _, key = header.partition(" ")
                if scheme.lower() == "bearer":
                    sent.append(key)
        if len(sent) != 1:
            return False
        return hmac.compare_digest(sent[0].encode("latin-1"), self.key)

    def check_origin(self, headers: Headers) -> None:
        """Refuse to write for web pages of other sites."""
        origin = headers.get("origin")
        if origin is None:
            return
        if self.origins is not None and re.fullmatch(self.origins, origin):
            return
        host = headers.get("host", "").lower()
        if not host or origin.partition("://")[2].lower() != host:
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
    patterns = [re.escape(origin).replace(r"\*", ".*") for origin in allowed]
    return "|".join(patterns) or None


def check_spelling(path: bytes) -> None:
    """A path has one spelling, by which a proxy in front can allow or forbid it: only the id in it
    may be percent-encoded, without a slash."""
    check_encoding(path)
    if b"%" in path and not ENCODED_ID.fullmatch(path):
        raise Refused(404, HTTP_ERRORS[404])


def check_encoding(address: bytes) -> None:
    """Bytes that are not UTF-8 would become one character: different sessions, the same id."""
    if b"%" in address:
        try:
            unquote_to_bytes(address).decode()
        except UnicodeDecodeError:
            raise Refused(400, "the address must be percent-encoded UTF-8") from None


def allowed_hosts(address: str, extra: Sequence[str]) -> tuple[str, ...]:
    """The names that are answered for; none means any.

    >>> allowed_hosts("0.0.0.0", ["Shop.example"])
    ('localhost', '127.0.0.1', '[::1]', 'shop.example')
    """
    is_local = is_loopback(address)
    if ANY in extra or not (extra or is_local):
        return ()
    names = list(LOCAL)
    if is_local:
        names.append(f"[{address}]" if ":" in address else address)
    names += [name.lower().rstrip(".") for name in extra]
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
    if not colon or (port and not port.isdigit()):
        name = host
    return name.lower().rstrip(".")
