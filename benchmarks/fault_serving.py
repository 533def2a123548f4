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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import redis

from fault_server import CLIENTS, SESSIONS, SETTLED, Attack, Missing, make_run, repeated
from harness import free_port
from posrec.server.session_store import MAX_CLICKS, key

MOST_LOST = 3  # requests of a client: the one in flight, and connections that the kernel had given to the dead worker
STORE = shutil.which("redis-server") or shutil.which("valkey-server")
BACK = 60  # seconds until stored sessions must be answered again
DAMAGES = ("truncated", "emptied", "removed", "of another run", "noise", "swapped")
STORE_FAULTS = ("killed", "frozen", "full", "cut off")
FILE_LIMIT, CONNECTIONS = 200, 300  # open files of the server, and connections at once
JUMPS = (1, 3600, 86_400, 400 * 86_400)  # seconds, forwards and backwards
FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
DENIED_LINES = 10_000_000
NO_FILES = "no more files can be opened, so new connections are closed at once; raise the limit (ulimit -n)"
DIED = "a worker died and is replaced"  # in the log


class WorkerKills(Attack):
    """Kill -9 of one of two workers while four clients ask. All answers are right, the worker is replaced, and no
    client loses more than three requests."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_run(folder, 1), "--workers", 2)
        self.server.wait_for("serving", 2)
        self.lost = 0

    def step(self, number: int, draw: random.Random) -> str:
        with repeated(self.ask) as (counts,):
            time.sleep(draw.uniform(0.05, 0.5))
            loaded = len(self.server.said("serving"))
            os.kill(draw.choice(self.server.workers()), signal.SIGKILL)
            self.server.wait_for("serving", loaded + 1)
        self.lost += counts["lost"]
        wrong = {name: count for name, count in counts.items() if name.startswith("wrong")}
        if wrong or counts["lost"] > MOST_LOST * CLIENTS:
            return f"failed: {dict(counts)}"
        return "replaced, requests in flight lost" if counts["lost"] else "replaced, nothing lost"

    def figures(self) -> dict[str, Any]:
        return {"requests_lost": self.lost}


class WithStore(Attack):
    """A server with a session store of its own."""

    def __init__(self, folder: Path, *options: object, run: Path | None = None, prefix: tuple[str, ...] = ()) -> None:
        if STORE is None:
            raise Missing("neither redis-server nor valkey-server is installed")
        self.port, self.folder = free_port(), folder
        self.start_store()
        url = f"redis://127.0.0.1:{self.port}/0"
        super().__init__(run or make_run(folder, 1), "--session-store", url, *options, prefix=prefix)

    def start_store(self) -> None:
        line = [STORE, "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.store = subprocess.Popen(list(map(str, line)), stdout=subprocess.DEVNULL)

    def click(self, session: str) -> int:
        return self.server.post(f"/v1/sessions/{session}/click", {"item": "i3", "k": 5})[0]

    def close(self) -> dict[str, Any]:
        about = super().close()
        self.store.send_signal(signal.SIGCONT)
        self.store.kill()
        self.store.wait()
        return about


class StoreFaults(WithStore):
    """Redis is killed and started again, frozen for one to three seconds, out of memory, or cuts off its clients, while
    eight clients ask. A request without a stored session gets its right answer, one with a stored session 200 or 503;
    stored sessions are answered again afterwards, and no click that was confirmed is missing."""

    def step(self, number: int, draw: random.Random) -> str:
        kind, confirmed = STORE_FAULTS[number % 4], Counter[str]()
        admin = redis.Redis(port=self.port, socket_timeout=30)

        def click(place: int) -> str:
            session = f"{number}-{place % CLIENTS}"
            status = self.click(session)
            confirmed[session] += status == 200
            return str(status)

        with repeated(self.ask, click) as (plain, stored):
            time.sleep(draw.uniform(0.2, 1))
            match kind:
                case "killed":
                    self.store.kill()
                    self.store.wait()
                case "frozen":
                    self.store.send_signal(signal.SIGSTOP)
                case "full":  # it still reads, and refuses what it would have to store
                    admin.config_set("maxmemory", 1)
                case _:
                    for _ in range(20):
                        admin.client_kill_filter(_type="normal", skipme=True)
                        time.sleep(0.05)
            time.sleep(draw.uniform(1, 3))
            match kind:
                case "killed":
                    self.start_store()
                case "frozen":
                    self.store.send_signal(signal.SIGCONT)
                case "full":
                    admin.config_set("maxmemory", 0)
            is_back = self.wait_until(lambda: self.click(f"back-{number}") == 200, BACK)
        if set(plain) != {"right"} or not set(stored) <= {"200", "503"}:
            return f"failed: {kind}: without a stored session {dict(plain)}, with one {dict(stored)}"
        if not is_back or self.server.answers() != self.expected:
            return f"failed: {kind}: stored sessions are not answered again"
        if kind != "killed":
            for session, clicks in confirmed.items():
                if (found := admin.llen(key(session))) < min(clicks, MAX_CLICKS):
                    return f"failed: {kind}: {clicks} clicks were confirmed and {found} are stored"
        return f"{kind}: stored sessions got 503, all others right answers" if stored["503"] else f"{kind}: not noticed"


class DamagedRuns(Attack):
    """A file of the served run is damaged in place (truncated, emptied, removed, of another run, noise, swapped with
    another file), then a whole run is renamed over it. All answers are those of the whole run."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.other, self.run = make_run(folder, 1), make_run(folder, 2), folder / "served"
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)
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
        if self.server.process.poll() is not None or self.server.answers() != self.expected:
            return f"failed: {name} {damage}: the whole run is not served again"
        return "only right answers" if set(counts) == {"right"} else f"failed: {name} {damage}: {dict(counts)}"


def replace_run(run: Path, whole: Path) -> None:
    """Rename a copy of the whole run into place, and wait until it is served."""
    fresh, before = run.with_name("fresh"), run.with_name("before")
    shutil.copytree(whole, fresh)
    run.rename(before)
    fresh.rename(run)
    shutil.rmtree(before)
    time.sleep(SETTLED)


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


class Limits(Attack):
    """Two workers that may open 200 files get 300 connections; the limit is lowered to what is open; memory is limited
    to what they have, while the run is replaced. Answers are right, 503 or a closed connection, the log says why, and
    the server recovers, with a new worker where one has died."""

    def __init__(self, folder: Path) -> None:
        self.run, self.whole = folder / "limited", make_run(folder, 1)
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)
        super().__init__(self.run, "--workers", 2, prefix=("prlimit", f"--nofile={FILE_LIMIT}"))
        self.server.wait_for("serving", 2)
        self.counts = Counter[str]()

    def step(self, number: int, draw: random.Random) -> str:
        kind = ("connections", "files", "memory")[number % 3]
        logged, before = len(self.server.log), self.counts.copy()
        getattr(self, f"use_up_{kind}")(draw)
        if not self.wait_until(lambda: [self.server.answers() for _ in range(4)] == [self.expected] * 4, 120):
            return f"failed: {kind}: it does not recover"
        lines = [line for line in self.server.log[logged:] if line.get("level") in ("warning", "error")]
        died = any(line["message"] == DIED for line in lines)
        allowed = ("right", "(503)", "files lost", *(["lost"] if died and kind == "memory" else []))
        wrong = {name: count for name, count in (self.counts - before).items() if not name.endswith(allowed)}
        reasons = lines or self.server.said(NO_FILES)  # it is not said again within a minute
        is_silent = (
            not reasons and kind != "connections" and set(self.counts - before) - {f"{kind} right", "large right"}
        )
        if wrong or is_silent:
            return f"failed: {kind}: {wrong}, logged {lines[:3]}"
        return f"{kind}: a worker died and was replaced" if died else f"{kind}: only right answers and 503"

    def use_up_connections(self, draw: random.Random) -> None:
        """More connections than the server may have open, each of which asks."""
        with repeated(self.counted("connections")):
            clients = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(CONNECTIONS)]
            time.sleep(draw.uniform(0.5, 1.5))
            for client in clients:
                client.close()

    def use_up_files(self, draw: random.Random) -> None:
        """The limit is lowered to what is open: connections are lost until it is raised again."""
        with repeated(self.counted("files")):
            self.limit(resource.RLIMIT_NOFILE, lambda worker: len(list((worker / "fd").iterdir())) - 2)
            time.sleep(draw.uniform(2, 3))
            self.limit(resource.RLIMIT_NOFILE, lambda worker: FILE_LIMIT)

    def use_up_memory(self, draw: random.Random) -> None:
        """Hardly any more memory, while clients ask for large answers and the run is replaced."""
        large = {"sessions": [["i3", "i4"]] * 1000, "k": 30}

        def ask_large(place: int) -> str:
            status = self.server.answer("/v1/recommend/batch", large)[0]
            return "large right" if status == 200 else f"large ({status})" if status else "large lost"

        page = os.sysconf("SC_PAGE_SIZE")
        with repeated(self.counted("memory"), ask_large) as (_, larges):
            self.limit(resource.RLIMIT_AS, lambda worker: int((worker / "statm").read_text().split()[0]) * page)
            replace_run(self.run, self.whole)
            self.limit(resource.RLIMIT_AS, lambda worker: resource.RLIM_INFINITY)
        self.counts += larges

    def counted(self, kind: str) -> Any:
        def ask(place: int) -> str:
            outcome = self.ask(place)
            self.counts[f"{kind} {outcome}"] += 1
            return outcome

        return ask

    def limit(self, kind: int, most: Callable[[Path], int]) -> None:
        """Limit every worker; `most` is called with its folder in /proc."""
        for pid in self.server.workers():
            with suppress(OSError):  # it has died, and is being replaced
                resource.prlimit(pid, kind, (most(Path(f"/proc/{pid}")), resource.prlimit(pid, kind)[1]))

    def figures(self) -> dict[str, Any]:
        return {"answers": dict(self.counts)}


class ClockJumps(WithStore):
    """The clock is set forwards or back, by a second to 400 days (libfaketime), while clients ask, click, send feedback
    and half a head; then the run is replaced. All are answered as ever, and no feedback is lost."""

    def __init__(self, folder: Path) -> None:
        if FAKE_CLOCK is None:
            raise Missing("libfaketime is not installed")
        self.clock, self.feedback, self.run = folder / "clock", folder / "feedback", folder / "clocked"
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(make_run(folder, 1), self.run)
        self.clock.write_text("+0")
        settings = ("NO_FAKE_STAT=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_NO_CACHE=1")
        fake = (f"LD_PRELOAD={FAKE_CLOCK}", f"FAKETIME_TIMESTAMP_FILE={self.clock}", *settings)
        options = ("--feedback", self.feedback, "--request-timeout", 2)
        super().__init__(folder, *options, run=self.run, prefix=("env", *fake))
        self.rows = 0

    def step(self, number: int, draw: random.Random) -> str:
        jump = draw.choice((-1, 1)) * JUMPS[number % len(JUMPS)]

        def report(place: int) -> str:
            shown = {"answer": f"a-{number}-{place}", "event": "shown", "items": ["i3"]}
            return str(self.server.answer("/v1/feedback", shown)[0])

        loaded = len(self.server.said("serving"))
        with repeated(self.ask, lambda place: str(self.click(f"{number}-{place}")), report) as (
            plain,
            stored,
            reported,
        ):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as slow:
                slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                self.clock.write_text(f"{jump:+d}")
                refused = slow.recv(100)
            replace_run(self.run, make_run(self.folder, 1))
            self.server.wait_for("serving", loaded + 1)
        self.rows += sum(reported.values())
        outcomes = (set(plain), set(stored) - {"503"}, set(reported))  # 503: the store took longer than half a second
        if outcomes != ({"right"}, {"200"}, {"202"}) or not refused.startswith(b"HTTP/1.1 408"):
            return f"failed: {jump:+,} s: {outcomes}, and half a head got {refused!r}"
        time.sleep(1)  # a file may be on its way to Parquet
        if (found := self.rows_on_disk()) != self.rows:
            return f"failed: {jump:+,} s: {self.rows} rows of feedback were confirmed, {found} are on disk"
        return f"{abs(jump):,} s: answered as ever"

    def rows_on_disk(self) -> int:
        lines = sum(file.read_bytes().count(b"\n") for file in self.feedback.glob(".open-*.jsonl"))
        return lines + sum(len(pl.read_parquet(file)) for file in self.feedback.glob("*.parquet"))

    def figures(self) -> dict[str, Any]:
        return {"feedback_rows": self.rows, "parquet_files": len(list(self.feedback.glob("*.parquet")))}


class LongDenyFile(Attack):
    """The served `--deny-file` gets ten million lines, then one again. Answers follow the old rules or the new ones."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "deny.txt"
        self.file.write_text("i29\n")
        super().__init__(make_run(folder, 1), "--deny-file", self.file)
        self.short, self.seconds, self.memory = self.expected, 0.0, self.server.memory()
        self.most_memory = self.memory

    def step(self, number: int, draw: random.Random) -> str:
        is_long, denied = number % 2 == 0, self.short[0][0]
        with (fresh := self.file.with_suffix(".new")).open("w") as file:
            file.writelines(f"sku-{line:08d}\n" for line in range(DENIED_LINES if is_long else 1))
            file.write(f"{denied}\n" if is_long else "i29\n")

        def ask(place: int) -> str:
            began, session = time.monotonic(), SESSIONS[place % len(SESSIONS)]
            status, items = self.server.ask(session)
            self.slowest = max(self.slowest, time.monotonic() - began)
            if denied not in items:
                return "new rules" if is_long else "old rules"
            is_right = items == self.short[place % len(SESSIONS)]
            return ("old rules" if is_long else "new rules") if is_right else f"wrong ({status})"

        read = len(self.server.said("rules read again"))
        with repeated(ask) as (counts,):
            began = time.monotonic()
            fresh.rename(self.file)
            while len(self.server.said("rules read again")) == read and time.monotonic() - began < 300:
                time.sleep(0.2)
                self.most_memory = max(self.most_memory, self.server.memory())
            self.seconds = max(self.seconds, time.monotonic() - began)
        answers = self.server.answers()
        if any(denied in items for items in answers) if is_long else answers != self.short:
            return "failed: the new rules do not hold"
        wrong = {name for name in counts if name not in ("old rules", "new rules")}
        return f"failed: {dict(counts)}" if wrong else f"{'ten million lines' if is_long else 'one line'}: read"

    def figures(self) -> dict[str, Any]:
        memory = {"memory_mb": self.memory >> 20, "most_memory_mb": self.most_memory >> 20}
        return {"most_seconds": round(self.seconds, 1), **memory, "file_mb": DENIED_LINES * 13 >> 20}
