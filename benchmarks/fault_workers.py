"""kill -9 of a worker of the server while clients ask."""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from fault_server import SESSIONS, Server, make_run

CLIENTS = 4
MOST_LOST = 3  # requests of a client: the one in flight, and connections that the kernel had given to the dead worker


class WorkerKills:
    """A worker is killed while clients ask: all other requests are answered, rightly, and the worker is replaced."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(make_run(folder, 1), "--workers", 2)
        self.server.wait_for("serving", 2)
        self.expected = self.server.answers()
        self.lost = 0

    def step(self, number: int, draw: random.Random) -> str:
        counts: Counter[str] = Counter()
        stop = threading.Event()

        def ask(offset: int) -> None:
            place = offset
            while not stop.is_set():
                place = (place + 1) % len(SESSIONS)
                status, items = self.server.ask(SESSIONS[place])
                counts["right" if items == self.expected[place] else "lost" if status == 0 else f"wrong {status}"] += 1

        clients = [threading.Thread(target=ask, args=(offset,)) for offset in range(CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(draw.uniform(0.05, 0.5))
        loaded = len(self.server.said("serving"))
        os.kill(draw.choice(self.server.workers()), signal.SIGKILL)
        self.server.wait_for("serving", loaded + 1)
        stop.set()
        for client in clients:
            client.join()
        self.lost += counts["lost"]
        wrong = {name: count for name, count in counts.items() if name.startswith("wrong")}
        if wrong or counts["lost"] > MOST_LOST * CLIENTS:
            return f"failed: {dict(counts)}"
        return "replaced, requests in flight lost" if counts["lost"] else "replaced, nothing lost"

    def close(self) -> dict[str, int]:
        about = {"requests_lost": self.lost, "tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about
