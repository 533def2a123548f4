"""The session store (Redis or Valkey) is killed or frozen while clients ask."""

import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from fault_server import SESSIONS, Server, make_run

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
CLIENTS = 4
BACK = 60  # seconds until stored sessions must be answered again


class StoreFaults:
    """Requests without a stored session are answered, rightly, all the time; the others get 503 at worst.

    When the store is back, so are the stored sessions.
    """

    def __init__(self, folder: Path) -> None:
        if PROGRAM is None:
            sys.exit("neither redis-server nor valkey-server is installed")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.slowest = folder, 0.0
        self.start_store()
        self.server = Server(make_run(folder, 1), "--session-store", f"redis://127.0.0.1:{self.port}/0")
        self.expected = self.server.answers()
        assert self.click("first", "i3")[0] == 200

    def start_store(self) -> None:
        line = [PROGRAM, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.store = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)

    def click(self, session: str, item: str) -> tuple[int, list[str]]:
        return self.server.post(f"/v1/sessions/{session}/click", {"item": item, "k": 5})

    def step(self, number: int, draw: random.Random) -> str:
        kind = ("killed", "frozen")[number % 2]
        plain: Counter[str] = Counter()
        stored: Counter[str] = Counter()
        stop = threading.Event()

        def ask(client: int) -> None:
            place = client
            while not stop.is_set():
                place = (place + 1) % len(SESSIONS)
                began = time.monotonic()
                status, items = self.server.ask(SESSIONS[place])
                self.slowest = max(self.slowest, time.monotonic() - began)
                plain["right" if items == self.expected[place] else f"wrong ({status})"] += 1

        def click(client: int) -> None:
            while not stop.is_set():
                stored[str(self.click(f"{number}-{client}", "i3")[0])] += 1

        clients = [threading.Thread(target=(ask, click)[n % 2], args=(n,)) for n in range(2 * CLIENTS)]
        for client in clients:
            client.start()
        time.sleep(draw.uniform(0.2, 1))
        self.store.send_signal(signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        time.sleep(draw.uniform(1, 3))
        if kind == "killed":
            self.store.wait()
            self.start_store()
        else:
            self.store.send_signal(signal.SIGCONT)
        end = time.monotonic() + BACK
        while (status := self.click(f"back-{number}", "i3")[0]) != 200 and time.monotonic() < end:
            time.sleep(0.05)
        stop.set()
        for client in clients:
            client.join()
        if set(plain) != {"right"} or not set(stored) <= {"200", "503"}:
            return f"failed: {kind}: without a stored session {dict(plain)}, with one {dict(stored)}"
        if status != 200 or self.server.ask(SESSIONS[0])[1] != self.expected[0]:
            return f"failed: {kind}: stored sessions are not answered again ({status})"
        return f"{kind}: stored sessions got 503, all others right answers" if stored["503"] else f"{kind}: not noticed"

    def close(self) -> dict[str, float]:
        about = {"slowest_without_store_ms": round(1000 * self.slowest), "tracebacks": self.server.tracebacks()}
        self.server.stop()
        self.store.send_signal(signal.SIGCONT)
        self.store.kill()
        self.store.wait()
        return about
