"""The workers of a server as Linux shows them."""

from pathlib import Path

from tests.server.server_process import Server, children, until

SOCKETS = Path("/proc/net/tcp")
LISTEN = "0A"  # the state of a socket


def listening(server: Server) -> int:
    """The number of sockets that listen on the server's port."""
    rows = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
    port = f":{server.port:04X}"
    return sum(row[1].endswith(port) and row[3] == LISTEN for row in rows)


def both_workers(server: Server) -> list[int]:
    """The processes of a server with two workers, once both listen."""
    until(lambda: listening(server) == 2)
    first, second = children(server)
    return [first, second]
