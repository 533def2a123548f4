"""Which Host headers are answered.

A web page of any site can send requests to 127.0.0.1 once its own name resolves to that address (DNS rebinding); its
requests still carry the name of that site. A server that listens on this machine alone therefore answers for the names
of this machine alone. One that listens on other addresses is reached under names that it can't know, so it answers for
all of them unless `--allow-host` names some.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any

LOCAL = ("localhost", "127.0.0.1", "[::1]")
ANY = "*"


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


def is_allowed(names: frozenset[str], scope: dict[str, Any], headers: dict[bytes, bytes]) -> bool:
    """Whether a request's Host header is one of `names`, with any port; every host is, where there are no names.

    HTTP/1.1 requires exactly one Host header. HTTP/1.0 may omit it: no browser speaks it, and some health checks do.
    """
    host = headers.get(b"host")
    if host is None:
        return scope.get("http_version") != "1.1"
    if len(headers) != len(scope["headers"]) and sum(name == b"host" for name, _ in scope["headers"]) > 1:
        return False
    return not names or host_name(host.decode("latin-1")) in names


def host_name(host: str) -> str:
    """The name in a Host header, without the port.

    >>> [host_name(host) for host in ("LocalHost:8000", "[::1]:8000", "shop.example.")]
    ['localhost', '[::1]', 'shop.example']
    """
    name, colon, port = host.rpartition(":")
    return (name if colon and (port.isdigit() or not port) else host).lower().rstrip(".")
