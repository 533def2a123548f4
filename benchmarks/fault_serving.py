"""Faults of a served run, under load: workers, the session store, files of the run, limits of the process, the clock,
and a very long list of denied items."""

import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import redis

from fault_server import (
    CLIENTS,
    SESSIONS,
    SETTLED,
    Missing,
    ServerAttack,
    answer,
    copy_of_run,
    make_run,
    repeated,
    replace_run,
    require,
    wait_until,
)
from harness import free_port
from posrec.server.session_store import MAX_CLICKS, key

MOST_LOST = 3  # requests of a client: the one in flight, and connections that the kernel had given to the dead worker
BACK = 60  # seconds until stored sessions must be answered again
DAMAGES = ("truncated", "emptied", "removed", "of another run", "noise", "swapped")
STORE_FAULTS = ("killed", "frozen", "full", "cut off")
FILE_LIMIT, CONNECTIONS = 200, 300  # open files of the server, and connections at once
JUMPS = (1, 3600, 86_400, 400 * 86_400)  # seconds, forwards and backwards
FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DENIED_LINES = 10_000_000
NO_FILES = "no more files can be opened, so new connections are closed at once; raise the limit (ulimit -n)"
DIED = "a worker died and is replaced"  # in the log


class WorkerKills(ServerAttack):
    """Kill -9 of one of two workers while four clients ask. All answers are right, the worker is replaced, and no
    client loses more than three requests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder), "--workers", 2)
        self.server.wait_for("serving", 2)

    def step(self, number: int, draw: random.Random) -> str:
        with repeated(self.ask) as (counts,):
            time.sleep(draw.uniform(0.05, 0.5))
            loaded = len(self.server.said("serving"))
            os.kill(draw.choice(self.server.workers()), signal.SIGKILL)
            self.server.wait_for("serving", loaded + 1)
        self.figures["requests_lost"] += counts["lost"]
        require(set(counts) <= {"right", "lost"} and counts["lost"] <= MOST_LOST * CLIENTS, f"{dict(counts)}")
        return "replaced, requests in flight lost" if counts["lost"] else "replaced, nothing lost"


class Store:
    """A Redis or Valkey of one's own."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise Missing("neither redis-server nor valkey-server is installed")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        line = [program, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        self.line = list(map(str, line))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.line, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class WithStore(ServerAttack):
    """A server with a session store of its own."""

    def __init__(self, folder: Path, run: Path, *options: object, prefix: Sequence[str] = ()) -> None:
        self.store = Store(folder)
        super().__init__(run, "--session-store", self.store.url, *options, prefix=prefix)

    def click(self, session: str) -> int:
        return answer(self.server.port, f"/v1/sessions/{session}/click", {"item": "i3", "k": 5})[0]

    def close(self) -> dict[str, Any]:
        figures = super().close()
        self.store.kill()
        return figures


class StoreFaults(WithStore):
    """Redis is killed and started again, frozen for one to three seconds, out of memory, or cuts off its clients, while
    eight clients ask. A request without a stored session gets its right answer, one with a stored session 200 or 503;
    stored sessions are answered again afterwards, and no click that was confirmed is missing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, make_run(folder))

    def step(self, number: int, draw: random.Random) -> str:
        kind, confirmed = STORE_FAULTS[number % 4], Counter[str]()
        admin = redis.Redis(port=self.store.port, socket_timeout=30)

        def click(place: int) -> str:
            session = f"{number}-{place % CLIENTS}"
            status = self.click(session)
            confirmed[session] += status == 200
            return str(status)

        def cut_off() -> None:
            for _ in range(20):
                admin.client_kill_filter(_type="normal", skipme=True)
                time.sleep(0.05)

        begin: dict[str, Callable[[], object]] = {
            "killed": self.store.kill,
            "frozen": lambda: self.store.process.send_signal(signal.SIGSTOP),
            "full": lambda: admin.config_set("maxmemory", 1),  # it still reads, and refuses what it would have to store
            "cut off": cut_off,
        }
        end: dict[str, Callable[[], object]] = {
            "killed": self.store.start,
            "frozen": lambda: self.store.process.send_signal(signal.SIGCONT),
            "full": lambda: admin.config_set("maxmemory", 0),
            "cut off": lambda: None,
        }
        with repeated(self.ask, click) as (plain, stored):
            time.sleep(draw.uniform(0.2, 1))
            begin[kind]()
            time.sleep(draw.uniform(1, 3))
            end[kind]()
            is_back = wait_until(lambda: self.click(f"back-{number}") == 200, BACK)
        answers = f"without a stored session {dict(plain)}, with one {dict(stored)}"
        require(set(plain) == {"right"} and set(stored) <= {"200", "503"}, f"{kind}: {answers}")
        require(is_back and self.server.answers() == self.expected, f"{kind}: stored sessions are not answered again")
        for session, clicks in confirmed.items() if kind != "killed" else ():
            found = admin.llen(key(session))
            require(found >= min(clicks, MAX_CLICKS), f"{kind}: {clicks} clicks were confirmed and {found} are stored")
        return f"{kind}: stored sessions got 503, all others right answers" if stored["503"] else f"{kind}: not noticed"


class DamagedRuns(ServerAttack):
    """A file of the served run is damaged in place (truncated, emptied, removed, of another run, noise, swapped with
    another file), then a whole run is renamed over it. All answers are those of the whole run."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.other, self.run = make_run(folder), make_run(folder, 2), copy_of_run(folder, "served")
        super().__init__(self.run)
        self.files = sorted(path.name for path in self.whole.iterdir())

    def step(self, number: int, draw: random.Random) -> str:
        name = self.files[number % len(self.files)]
        damage = DAMAGES[number // len(self.files) % len(DAMAGES)]
        neighbour = self.files[(number + 1) % len(self.files)]
        with repeated(self.ask) as (counts,):
            damage_file(self.run / name, self.other / name, self.run / neighbour, damage, draw)
            time.sleep(SETTLED)
        replace_run(self.run, self.whole)
        require(self.server.answers() == self.expected, f"{name} {damage}: the whole run is not served again")
        require(set(counts) == {"right"}, f"{name} {damage}: {dict(counts)}")
        return "only right answers"


def damage_file(file: Path, other: Path, neighbour: Path, damage: str, draw: random.Random) -> None:
    """`other` is the same file of another run, `neighbour` another file of the same run."""
    content = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(content[: draw.randrange(len(content))])
        case "emptied":
            file.write_bytes(b"")
        case "removed":
            file.unlink()
        case "of another run":
            shutil.copyfile(other, file)
        case "swapped":
            file.write_bytes(neighbour.read_bytes())
            neighbour.write_bytes(content)
        case _:
            place = draw.randrange(len(content))
            file.write_bytes(content[:place] + draw.randbytes(32) + content[place + 32 :])


class Limits(ServerAttack):
    """Two workers that may open 200 files get 300 connections; the limit is lowered to what is open; memory is limited
    to what they have, while the run is replaced. Answers are right, 503 or a closed connection, the log says why, and
    the server recovers, with a new worker where one has died."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.run = make_run(folder), copy_of_run(folder, "limited")
        super().__init__(self.run, "--workers", 2, prefix=("prlimit", f"--nofile={FILE_LIMIT}"))
        self.server.wait_for("serving", 2)
        self.figures["answers"] = Counter()

    def step(self, number: int, draw: random.Random) -> str:
        kind = ("connections", "files", "memory")[number % 3]
        logged, clients = len(self.server.log), {kind: self.ask}
        if kind == "memory":
            clients["large"] = self.ask_large
        with repeated(*clients.values()) as counts:
            getattr(self, f"use_up_{kind}")(draw)
        recovers = wait_until(lambda: [self.server.answers() for _ in range(4)] == [self.expected] * 4, 120)
        require(recovers, f"{kind}: it does not recover")
        for name, count in zip(clients, counts, strict=True):
            self.figures["answers"] += Counter({f"{name} {outcome}": number for outcome, number in count.items()})
        lines = [line for line in self.server.log[logged:] if line.get("level") in ("warning", "error")]
        died = any(line["message"] == DIED for line in lines)
        may_lose = kind == "files" or (kind == "memory" and died)
        outcomes = {outcome for count in counts for outcome in count}
        reasons = lines or self.server.said(NO_FILES)  # it is not said again within a minute
        is_silent = not reasons and kind != "connections" and outcomes != {"right"}
        wrong = outcomes - {"right", "wrong (503)", *(["lost"] if may_lose else [])}
        require(not wrong and not is_silent, f"{kind}: {outcomes}, logged {lines[:3]}")
        return f"{kind}: a worker died and was replaced" if died else f"{kind}: only right answers and 503"

    def ask_large(self, place: int) -> str:
        body = {"sessions": [["i3", "i4"]] * 1000, "k": 30}
        status = answer(self.server.port, "/v1/recommend/batch", body)[0]
        return "right" if status == 200 else f"wrong ({status})" if status else "lost"

    def use_up_connections(self, draw: random.Random) -> None:
        """More connections than the server may have open."""
        clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(CONNECTIONS)]
        time.sleep(draw.uniform(0.5, 1.5))
        for client in clients:
            client.close()

    def use_up_files(self, draw: random.Random) -> None:
        """The limit is lowered to what is open: connections are lost until it is raised again."""
        self.limit(resource.RLIMIT_NOFILE, lambda worker: len(list((worker / "fd").iterdir())) - 2)
        time.sleep(draw.uniform(2, 3))
        self.limit(resource.RLIMIT_NOFILE, lambda worker: FILE_LIMIT)

    def use_up_memory(self, draw: random.Random) -> None:
        """Hardly any more memory, while the run is replaced."""
        page = os.sysconf("SC_PAGE_SIZE")
        self.limit(resource.RLIMIT_AS, lambda worker: int((worker / "statm").read_text().split()[0]) * page)
        replace_run(self.run, self.whole)
        self.limit(resource.RLIMIT_AS, lambda worker: resource.RLIM_INFINITY)

    def limit(self, kind: int, most: Callable[[Path], int]) -> None:
        """Limit every worker; `most` is called with its folder in /proc."""
        for pid in self.server.workers():
            with suppress(OSError):  # it has died, and is being replaced
                resource.prlimit(pid, kind, (most(Path(f"/proc/{pid}")), resource.prlimit(pid, kind)[1]))


class ClockJumps(WithStore):
    """The clock is set forwards or back, by a second to 400 days (libfaketime), while clients ask, click, send feedback
    and half a head; then the run is replaced. All are answered as ever, and no feedback is lost."""

    def __init__(self, folder: Path) -> None:
        if FAKE_CLOCK is None:
            raise Missing("libfaketime is not installed")
        self.clock, self.feedback = folder / "clock", folder / "feedback"
        self.whole, self.run = make_run(folder), copy_of_run(folder, "clocked")
        self.clock.write_text("+0")
        settings = ("NO_FAKE_STAT=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_NO_CACHE=1")
        fake = (f"LD_PRELOAD={FAKE_CLOCK}", f"FAKETIME_TIMESTAMP_FILE={self.clock}", *settings)
        options = ("--feedback", self.feedback, "--request-timeout", 2)
        super().__init__(folder, self.run, *options, prefix=("env", *fake))

    def step(self, number: int, draw: random.Random) -> str:
        jump = draw.choice((-1, 1)) * JUMPS[number % len(JUMPS)]

        def click(place: int) -> str:
            return str(self.click(f"{number}-{place}"))

        def report(place: int) -> str:
            shown = {"answer": f"a-{number}-{place}", "event": "shown", "items": ["i3"]}
            return str(answer(self.server.port, "/v1/feedback", shown)[0])

        loaded = len(self.server.said("serving"))
        with repeated(self.ask, click, report) as (plain, stored, reported):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as slow:
                slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                self.clock.write_text(f"{jump:+d}")
                refused = slow.recv(100)
            replace_run(self.run, self.whole)
            self.server.wait_for("serving", loaded + 1)
        self.figures["feedback_rows"] += sum(reported.values())
        outcomes = (set(plain), set(stored) - {"503"}, set(reported))  # 503: the store took longer than half a second
        require(outcomes == ({"right"}, {"200"}, {"202"}), f"{jump:+,} s: {outcomes}")
        require(refused.startswith(b"HTTP/1.1 408"), f"{jump:+,} s: half a head got {refused!r}")
        time.sleep(1)  # a file may be on its way to Parquet
        found, rows = self.rows_on_disk(), self.figures["feedback_rows"]
        require(found == rows, f"{jump:+,} s: {rows} rows of feedback were confirmed, {found} are on disk")
        return f"{abs(jump):,} s: answered as ever"

    def rows_on_disk(self) -> int:
        lines = sum(file.read_bytes().count(b"\n") for file in self.feedback.glob(".open-*.jsonl"))
        return lines + sum(len(pl.read_parquet(file)) for file in self.feedback.glob("*.parquet"))


class LongDenyFile(ServerAttack):
    """The served `--deny-file` gets ten million lines, then one again. Answers follow the old rules or the new ones."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deny.txt"
        self.file.write_text("i29\n")
        super().__init__(make_run(folder), "--deny-file", self.file)
        self.figures |= {"memory_mb": self.memory_before, "file_mb": DENIED_LINES * 13 >> 20}

    def step(self, number: int, draw: random.Random) -> str:
        is_long, denied = number % 2 == 0, self.expected[0][0]
        with (fresh := self.file.with_suffix(".new")).open("w") as file:
            file.writelines(f"sku-{line:08d}\n" for line in range(DENIED_LINES if is_long else 1))
            file.write(f"{denied}\n" if is_long else "i29\n")

        def ask(place: int) -> str:
            """A list without the denied item follows the long file; its other items are not compared."""
            began, place = time.monotonic(), place % len(SESSIONS)
            status, items = self.server.ask(SESSIONS[place])
            self.note("slowest_ms", 1000 * (time.monotonic() - began))
            is_right = denied not in items or items == self.expected[place]
            return "right" if status == 200 and is_right else f"wrong ({status})"

        def is_read() -> bool:
            self.note("most_memory_mb", self.server.memory_mb())
            return len(self.server.said("rules read again")) > read

        read, began = len(self.server.said("rules read again")), time.monotonic()
        with repeated(ask) as (counts,):
            fresh.rename(self.file)
            wait_until(is_read, 300)
            self.note("most_seconds", time.monotonic() - began)
        answers = self.server.answers()
        holds = not any(denied in items for items in answers) if is_long else answers == self.expected
        require(holds, "the new rules do not hold")
        require(set(counts) == {"right"}, f"{dict(counts)}")
        return f"{'ten million lines' if is_long else 'one line'}: read"
