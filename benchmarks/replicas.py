"""Two replicas behind nginx with sessions in Valkey or Redis: one is killed under load, then a new run is rolled out.

    python benchmarks/replicas.py

Real processes on this machine: nginx with examples/compose/nginx.conf (only addresses are replaced), redis-server or
valkey-server, and two `posrec serve`. Clients send requests through nginx all the time: recommendations for a session
in the request, and clicks of stored sessions. In turn: a quiet time; one replica is killed with SIGKILL and started
again; and the replicas are stopped with SIGTERM and started with another run, one after the other. A click that is
answered 502 is sent again by the client, as docs/deploying.md says. In the end, the clicks in the store are compared
with those that were confirmed.
"""

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import redis

from fault_server import CLIENTS, ITEMS, Server, answer, make_run, repeated, wait_until
from fault_serving import Store
from harness import free_port, options, write_result
from posrec.server.session_store import MAX_CLICKS, key

CONFIGURATION = Path(__file__).resolve().parents[1] / "examples" / "compose" / "nginx.conf"
PAUSE = 0.05  # seconds between the requests of a client
MOST_TRIES = 5  # of a click, by the client
MOST_CLICKS = MAX_CLICKS // 2  # of a session, so that the store forgets none even if some are stored twice


class Load:
    """Requests through nginx, phase by phase."""

    def __init__(self, port: int) -> None:
        self.port, self.runs = port, set[str]()
        self.phases: dict[str, Any] = {}
        self.confirmed: defaultdict[str, list[str]] = defaultdict(list)  # clicks that were answered 200, by session

    def send(self, path: str, number: int) -> str:
        time.sleep(PAUSE)
        item = f"i{number % ITEMS}"
        body = {"item": item, "k": 5} if path.endswith("click") else {"session": [item], "k": 5}
        status, content = answer(self.port, path, body)
        self.runs |= {content["run"]} if status == 200 else set()
        return str(status)

    def recommend(self, number: int) -> str:
        return self.send("/v1/recommend", number)

    def click(self, number: int) -> str:
        session, statuses = f"{number % CLIENTS}-{number // CLIENTS // MOST_CLICKS}", []
        while "200" not in statuses and len(statuses) < MOST_TRIES:
            statuses.append(self.send(f"/v1/sessions/{session}/click", number))
        self.confirmed[session] += [f"i{number % ITEMS}"] if "200" in statuses else []
        return ", then ".join(statuses)

    def run(self, phase: str, *events: Any) -> None:
        """The events of a phase, called or waited for, while the clients ask."""
        self.runs.clear()
        with repeated(self.recommend, self.click) as counts:
            for event in events:
                time.sleep(event) if isinstance(event, float) else event()
        failed = [{status: number for status, number in count.items() if status != "200"} for count in counts]
        self.phases[phase] = {
            "requests": sum(count.total() for count in counts),
            "not_answered_200": dict(zip(("recommend", "click"), failed, strict=True)),
            "runs_that_answered": len(self.runs),
        }


def start_nginx(folder: Path, port: int, replicas: list[Server]) -> "subprocess.Popen[bytes]":
    text = CONFIGURATION.read_text(encoding="utf-8")
    for name, replica in zip(("posrec-a", "posrec-b"), replicas, strict=True):
        text = text.replace(f"{name}:8000", f"127.0.0.1:{replica.port}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/dev/stdout", str(folder / "access.log"))
    (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid;\ndaemon off;\n{text}")
    line = ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    process = subprocess.Popen(list(map(str, line)))
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 60)
    return process


def retries(log: Path) -> dict[str, int]:
    """Requests that nginx sent to a second replica, by the status of the first and of the final answer."""
    found = Counter(re.findall(r'^(\d+) "(\d+), \d+"', log.read_text(), re.MULTILINE))
    return {f"{first} then {last}": number for (last, first), number in sorted(found.items())}


def main() -> None:
    given = options(__doc__, "results/replicas.json", seconds=10.0)
    if shutil.which("nginx") is None:
        sys.exit("nginx is not installed: apt-get install nginx-light")
    with tempfile.TemporaryDirectory() as name:
        folder, half, codes = Path(name), given.seconds / 2, []
        first, second, port = make_run(folder), make_run(folder, 2), free_port()
        store = Store(folder)

        def start(run: Path, at: int = 0) -> Server:
            return Server(run, "--session-store", store.url, "--workers", 2, "--allow-host", "*", port=at)

        def restart(place: int, run: Path) -> None:
            replicas[place] = start(run, replicas[place].port)

        def replace(place: int) -> None:
            codes.append(replicas[place].stop())
            restart(place, second)

        replicas = [start(first), start(first)]
        nginx, load = start_nginx(folder, port, replicas), Load(port)
        try:
            load.run("quiet", given.seconds)
            again = (replicas[0].kill, half, lambda: restart(0, first))
            load.run("one replica killed, and started again", half, *again, half)
            load.run("another run rolled out", lambda: replace(0), half, lambda: replace(1), half)
            load.run("after the rollout", half)
            client = redis.Redis(port=store.port, decode_responses=True)
            stored = {name: Counter(client.lrange(key(name), 0, -1)) for name in load.confirmed}
        finally:
            nginx.terminate()
            nginx.wait(60)
            for replica in replicas:
                replica.stop()
            store.kill()
        confirmed = {name: Counter(clicks) for name, clicks in load.confirmed.items()}
        report = {
            "phases": load.phases,
            "retried_by_nginx": retries(folder / "access.log"),
            "exit_codes_of_stopped_replicas": codes,
            "clicks_confirmed": sum(clicks.total() for clicks in confirmed.values()),
            "clicks_lost": sum((clicks - stored[name]).total() for name, clicks in confirmed.items()),
            "clicks_stored_twice": sum((stored[name] - clicks).total() for name, clicks in confirmed.items()),
            "nginx": subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr.strip(),
        }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
