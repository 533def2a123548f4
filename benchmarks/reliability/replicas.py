"""Two replicas behind nginx, with sessions in Redis or Valkey."""

import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.reliability.served import (
    CLIENTS,
    ITEMS,
    Figures,
    Steps,
    answer,
    make_run,
    repeated,
    require_program,
)
from benchmarks.reliability.serving import store_in
from posrec.server.session_store import MAX_CLICKS
from tests.server.nginx_process import nginx_before
from tests.server.server_process import Server, children, serving

PAUSE = 0.05  # seconds between the requests of a client
# of a session, so that the store forgets none even if some are stored twice
MOST_CLICKS = MAX_CLICKS // 2
SECONDS = 5.0  # around each event


class Clients:
    """Requests through nginx: recommendations for a session in the request, and clicks of stored
    sessions."""

    def __init__(self, nginx: Server, step: int) -> None:
        self.nginx = nginx
        self.step = step
        self.runs = set[str]()
        # clicks answered 200, by session
        self.confirmed: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def send(self, path: str, body: dict[str, object]) -> int:
        time.sleep(PAUSE)
        status, content = answer(self.nginx, path, body)
        if status == 200:
            self.runs.add(content["run"])
        return status

    def recommend(self, number: int) -> str:
        body: dict[str, object] = {"session": [f"i{number % ITEMS}"], "k": 5}
        return str(self.send("/v1/recommend", body))

    def click(self, number: int) -> str:
        """A click that is answered 502 is sent again, as docs/deploying.md says."""
        session = f"{self.step}-{number % CLIENTS}-{number // CLIENTS // MOST_CLICKS}"
        item = f"i{number % ITEMS}"
        path = f"/v1/sessions/{session}/click"
        body: dict[str, object] = {"item": item, "k": 5}
        statuses = [self.send(path, body)]
        if statuses == [502]:
            statuses.append(self.send(path, body))
        self.confirmed[session][item] += statuses[-1] == 200
        return ", then ".join(map(str, statuses))


def replicas(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Two replicas behind nginx with [the example's configuration](../examples/compose/nginx.conf),
    eight clients, half of which send clicks of stored sessions. One replica is killed and started
    again; or another run is rolled out, replica by replica. Every request gets 200, a click perhaps
    when the client has sent it again after 502; no confirmed click is missing in the store; after a
    rollout only the new run answers."""
    require_program("nginx")
    run = make_run(folder)
    other = make_run(folder, 2)
    with store_in(folder) as store, ExitStack() as stack:

        def start(port: int = 0) -> Server:
            options = ["--session-store", store.address(), "--workers", 2]
            options += ["--allow-host", "*", "--port", port]
            return stack.enter_context(serving(run, *options, forked=False))

        servers = [start(), start()]
        nginx = stack.enter_context(nginx_before(folder, servers))
        for number, _ in steps:
            clients = Clients(nginx, number)
            is_rollout = number % 2 == 1
            run, other = (other, run) if is_rollout else (run, other)
            with repeated(clients.recommend, clients.click) as (recommended, clicked):
                time.sleep(SECONDS)
                for replica in (0, 1) if is_rollout else (0,):
                    stopped = servers[replica]
                    if is_rollout:
                        os.kill(stopped.process.pid, signal.SIGTERM)
                        stopped.process.wait(60)
                    else:
                        kill_all(stopped)
                        time.sleep(SECONDS)
                    servers[replica] = start(stopped.port)
                    clients.runs.clear()
                    time.sleep(SECONDS)
            assert set(recommended) == {"200"}, recommended
            assert set(clicked) <= {"200", "502, then 200"}, clicked
            assert len(clients.runs) == 1, "both runs answer after the rollout"
            for session, clicks in clients.confirmed.items():
                stored = Counter(store.stored(session))
                assert not clicks - stored, "a confirmed click is not stored"
                figures["clicks_stored_twice"] += (stored - clicks).total()
            figures["clicks_confirmed"] += clicked.total()
            figures["requests"] += recommended.total() + clicked.total()
            figures["clicks_sent_again"] += clicked["502, then 200"]
            if is_rollout:
                yield "another run rolled out"
            else:
                yield "one replica killed, and started again"
    log = (folder / "access.log").read_text()
    retried = re.findall(r'^\d+ "\d+, \d+"', log, re.MULTILINE)
    figures["retried_by_nginx"] = len(retried)


def kill_all(server: Server) -> None:
    """Kill -9 of the server and its workers."""
    for pid in (server.process.pid, *children(server)):
        os.kill(pid, signal.SIGKILL)
    server.process.wait(60)
