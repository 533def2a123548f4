"""nginx with the configuration that is shipped, in front of servers of this machine."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers import ROOT
from tests.server.server_process import Server, until

CONFIGURATION = ROOT / "examples" / "compose" / "nginx.conf"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def nginx_before(folder: Path, servers: list[Server]) -> Iterator[Server]:
    """nginx with the configuration of the example, in which only addresses are replaced."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    port = free_port()
    for name, server in zip(("posrec-a", "posrec-b"), servers, strict=True):
        text = text.replace(f"{name}:8000", f"127.0.0.1:{server.port}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = text.replace("/dev/stdout", str(folder / "access.log"))
    (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid;\ndaemon off;\n{text}")
    options = ["-p", f"{folder}", "-c", f"{folder}/nginx.conf"]
    options += ["-e", f"{folder}/error.log"]
    process = subprocess.Popen(["nginx", *options], text=True)
    nginx = Server(process)
    nginx.log.append({"message": "listening", "url": f"http://127.0.0.1:{port}"})
    try:
        until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield nginx
    finally:
        process.terminate()
        process.wait(60)
