"""Faults of a served run, under load.

They are faults of its workers, the session store, files of the run, limits of the process, the
clock, and a very long list of denied items.
"""

import os
import random
import resource
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import polars as pl

from benchmarks.reliability import served
from benchmarks.reliability.paced_client import head
from benchmarks.reliability.served import (
    CLIENTS,
    SETTLED,
    Figures,
    Missing,
    Steps,
    answer,
    attacked,
    copy_of_run,
    make_run,
    repeated,
)
from posrec.server.feedback.answer_ids import answer_key, new_answer_id
from posrec.server.session_store import MAX_CLICKS
from tests.server.server_process import Server, children, open_files, until
from tests.server.sessions.store_process import Store

# Requests of a client: the one in flight, and connections that the kernel had given to the worker.
MOST_LOST = 3
DAMAGES = ("truncated", "emptied", "removed", "of another run", "noise", "swapped")
STORE_FAULTS = ("killed", "frozen", "full", "cut off")
# open files of the server, and connections at once
FILE_LIMIT = 200
CONNECTIONS = 300
JUMPS = (1, 3600, 86_400, 400 * 86_400)  # seconds, forwards and backwards
FAKE_CLOCK = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
HALF_A_REQUEST = head("POST", "/v1/recommend", "Content-Length: 9") + b"{"
DENIED_LINES = 10_000_000
# in the log
DIED = "Unexpected exit from worker-"
READ_AGAIN = "rules read again"


def worker_kills(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of one of two workers while four clients ask. All answers are right, the worker is
    replaced, and no client loses more than three requests."""
    with attacked(figures, make_run(folder), "--workers", 2) as target:
        server = target.server
        served.wait_for_workers(server, 2)
        for _, draw in steps:
            with repeated(target.compare) as (counts,):
                time.sleep(draw.uniform(0.05, 0.5))
                loaded = len(server.logged("serving"))
                os.kill(draw.choice(children(server)), signal.SIGKILL)
                served.wait_for_workers(server, loaded + 1)
            figures["requests_lost"] += counts["lost"]
            assert set(counts) <= {"right", "lost"}, counts
            assert counts["lost"] <= MOST_LOST * CLIENTS, counts
            lost = "requests in flight" if counts["lost"] else "nothing"
            yield f"replaced, {lost} lost"


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    served.require_program("redis-server", "valkey-server")
    store = Store(folder)
    store.start()
    try:
        yield store
    finally:
        store.stop()


@contextmanager
def disturbed(store: Store, fault: str) -> Iterator[None]:
    match fault:
        case "killed":
            store.stop()
            yield
            store.start()
        case "frozen":
            with store.hanging():
                yield
        case "full":  # it still reads, and refuses what it would have to store
            store.client.config_set("maxmemory", 1)
            yield
            store.client.config_set("maxmemory", 0)
        case "cut off":
            for _ in range(20):
                store.client.client_kill_filter(_type="normal", skipme=True)
                time.sleep(0.05)
            yield


def click(server: Server, session: str) -> int:
    return answer(server, f"/v1/sessions/{session}/click", {"item": "i3", "k": 5})[0]


def store_faults(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Redis is killed and started again, frozen for one to three seconds, out of memory, or cuts
    off its clients, while eight clients ask. A request without a stored session gets its right
    answer, one with a stored session 200 or 503; stored sessions are answered again afterwards, and
    no click that was confirmed is missing."""
    confirmed = Counter[str]()

    def counted_click(number: int) -> str:
        session = f"{len(confirmed) // CLIENTS}-{number % CLIENTS}"
        status = click(target.server, session)
        confirmed[session] += status == 200
        return str(status)

    with store_in(folder) as store:
        address = f"redis://127.0.0.1:{store.port}/0"  # with its default timeouts
        with attacked(figures, make_run(folder), "--session-store", address) as target:
            for number, draw in steps:
                fault = STORE_FAULTS[number % len(STORE_FAULTS)]
                confirmed.clear()
                store.client.flushall()
                with repeated(target.compare, counted_click) as (plain, stored):
                    time.sleep(draw.uniform(0.2, 1))
                    with disturbed(store, fault):
                        time.sleep(draw.uniform(1, 3))
                    until(lambda: click(target.server, "afterwards") == 200, 60)
                error = f"{fault}: without a stored session {plain}"
                assert set(plain) == {"right"}, error
                error = f"{fault}: with a stored session {stored}"
                assert set(stored) <= {"200", "503"}, error
                assert target.answers() == target.expected
                if fault != "killed":
                    check_stored(store, confirmed, fault)
                if stored["503"]:
                    yield f"{fault}: stored sessions got 503, all others right answers"
                else:
                    yield f"{fault}: not noticed"


def check_stored(store: Store, confirmed: Counter[str], fault: str) -> None:
    for session, clicks in confirmed.items():
        stored = len(store.stored(session))
        error = f"{fault}: {clicks} clicks were confirmed, {stored} stored"
        assert stored >= min(clicks, MAX_CLICKS), error


def damaged_runs(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """A file of the served run is damaged in place (truncated, emptied, removed, of another run,
    noise, swapped with another file), then a whole run is renamed over it. All answers are those of
    the whole run."""
    whole = make_run(folder)
    other = make_run(folder, 2)
    run = copy_of_run(folder, "served")
    files = sorted(path.name for path in whole.iterdir())
    with attacked(figures, run) as target:
        for number, draw in steps:
            name = files[number % len(files)]
            neighbour = files[(number + 1) % len(files)]
            damage = DAMAGES[number // len(files) % len(DAMAGES)]
            with repeated(target.compare) as (counts,):
                damage_file(run / name, other / name, run / neighbour, damage, draw)
                time.sleep(SETTLED)
            served.replace_run(run, whole)
            error = f"{name} {damage}: the whole run is not served again"
            assert target.answers() == target.expected, error
            assert set(counts) == {"right"}, f"{name} {damage}: {counts}"
            yield "only right answers"


def damage_file(
    file: Path, other: Path, neighbour: Path, damage: str, draw: random.Random
) -> None:
    """`other` is the same file of another run, `neighbour` another file of the same run."""
    content = file.read_bytes()
    start = draw.randrange(len(content))
    match damage:
        case "truncated":
            file.write_bytes(content[:start])
        case "emptied":
            file.write_bytes(b"")
        case "removed":
            file.unlink()
        case "of another run":
            shutil.copyfile(other, file)
        case "swapped":
            file.write_bytes(neighbour.read_bytes())
            neighbour.write_bytes(content)
        case "noise":
            noise = draw.randbytes(32)
            file.write_bytes(content[:start] + noise + content[start + 32 :])


def limits(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Two workers that may open 200 files get 300 connections; the limit is lowered to what is
    open; memory is limited to what they have, while the run is replaced. Answers are right, 503 or
    a closed connection, and the server recovers, with a new worker where one has died."""
    whole = make_run(folder)
    run = copy_of_run(folder, "limited")
    figures["answers"] = Counter()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The server inherits the limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILE_LIMIT, before[1]))
    with attacked(figures, run, "--workers", 2) as target:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        server = target.server
        served.wait_for_workers(server, 2)

        def ask_many(_: int) -> str:
            body = {"sessions": [["i3", "i4"]] * 1000, "k": 30}
            status, _ = answer(server, "/v1/recommend/batch", body)
            if status == 200:
                return "right"
            return f"wrong ({status})" if status else "lost"

        def is_right() -> bool:
            return all(target.answers() == target.expected for _ in range(4))

        for number, draw in steps:
            kind = ("connections", "files", "memory")[number % 3]
            logged = len(server.log)
            clients: dict[str, Callable[[int], str]] = {kind: target.compare}
            if kind == "memory":
                clients["large"] = ask_many
            with repeated(*clients.values()) as counts:
                match kind:
                    case "connections":
                        open_connections(server, draw)
                    case "files":
                        limit_files(server, draw)
                    case "memory":
                        limit_memory(server, run, whole)
            until(is_right, 120)
            for name, count in zip(clients, counts, strict=True):
                for outcome, times in count.items():
                    figures["answers"][f"{name} {outcome}"] += times
            lines = [
                line
                for line in server.log[logged:]
                if line.get("level") in ("warning", "error")
            ]
            died = any(line["message"].startswith(DIED) for line in lines)
            allowed = {"right", "wrong (503)"}
            if kind == "files" or (kind == "memory" and died):
                allowed.add("lost")
            outcomes = set[str]().union(*counts)
            assert outcomes <= allowed, f"{kind}: {outcomes}, {lines[:3]}"
            if died:
                yield f"{kind}: a worker died and was replaced"
            else:
                yield f"{kind}: only right answers and 503"


def open_connections(server: Server, draw: random.Random) -> None:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(server.address))
        time.sleep(draw.uniform(0.5, 1.5))


def limit_files(server: Server, draw: random.Random) -> None:
    limit_workers(server, resource.RLIMIT_NOFILE, lambda pid: open_files(pid) - 2)
    time.sleep(draw.uniform(2, 3))
    limit_workers(server, resource.RLIMIT_NOFILE, lambda _: FILE_LIMIT)


def limit_memory(server: Server, run: Path, whole: Path) -> None:
    limit_workers(server, resource.RLIMIT_AS, address_space)
    served.replace_run(run, whole)
    limit_workers(server, resource.RLIMIT_AS, lambda _: resource.RLIM_INFINITY)


def limit_workers(server: Server, kind: int, most: Callable[[int], int]) -> None:
    """`most` is called with the process id of each worker."""
    for pid in children(server):
        with suppress(OSError):  # it has died, and is being replaced
            resource.prlimit(pid, kind, (most(pid), resource.prlimit(pid, kind)[1]))


def address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def fake_clock(file: Path) -> Iterator[None]:
    """What is started in the block reads from this file by how many seconds its clock is wrong."""
    if FAKE_CLOCK is None:
        raise Missing("libfaketime is not installed")
    file.write_text("+0")
    names = ("NO_FAKE_STAT", "FAKETIME_DONT_FAKE_MONOTONIC", "FAKETIME_NO_CACHE")
    settings = {
        "LD_PRELOAD": str(FAKE_CLOCK),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        **dict.fromkeys(names, "1"),
    }
    os.environ.update(settings)
    yield
    for name in settings:
        del os.environ[name]


def clock_jumps(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """The clock is set forwards or back, by a second to 400 days (libfaketime), while clients ask,
    click, send feedback and half a body; then the run is replaced. All are answered as ever, and no
    feedback is lost."""
    clock = folder / "clock"
    feedback = folder / "feedback"
    key = answer_key(feedback)
    whole = make_run(folder)
    run = copy_of_run(folder, "clocked")

    def click_once(number: int) -> str:
        return str(click(target.server, f"session-{number}"))

    def report(number: int) -> str:
        answer_id = new_answer_id("5f0c9e1b7a42", "run", key, [("i3", False)])
        shown = {"answer": answer_id, "event": "shown", "items": ["i3"]}
        return str(answer(target.server, "/v1/feedback", shown)[0])

    with store_in(folder) as store, fake_clock(clock):
        options = ["--session-store", store.address(), "--feedback", feedback]
        options += ["--request-timeout", 2]
        with attacked(figures, run, *options) as target:
            for number, draw in steps:
                jump = draw.choice((-1, 1)) * JUMPS[number % len(JUMPS)]
                loaded = len(target.server.logged("serving"))
                with repeated(target.compare, click_once, report) as counts:
                    with socket.create_connection(
                        target.server.address, timeout=30
                    ) as slow:
                        slow.sendall(HALF_A_REQUEST)
                        clock.write_text(f"{jump:+d}")
                        refused = slow.recv(100)
                    served.replace_run(run, whole)
                    served.wait_for_workers(target.server, loaded + 1)
                error = f"{jump:+,} s: {counts}"
                assert [*map(set, counts)] == [{"right"}, {"200"}, {"202"}], error
                error = f"{jump:+,} s: half a body got {refused!r}"
                assert refused.startswith(b"HTTP/1.1 408"), error
                time.sleep(1)  # a file may be on its way to Parquet
                rows = rows_of_feedback(feedback)
                figures["feedback_rows"] += counts[2].total()
                error = f"{jump:+,} s: {rows} rows of feedback are on disk"
                assert rows == figures["feedback_rows"], error
                yield f"{abs(jump):,} s: answered as ever"


def rows_of_feedback(folder: Path) -> int:
    rows = sum(len(pl.read_parquet(file)) for file in folder.glob("*.parquet"))
    for file in folder.glob(".open-*.jsonl"):
        rows += file.read_bytes().count(b"\n")
    return rows


def long_deny_file(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """The served `--deny-file` gets ten million lines, then one again. Answers follow the old rules
    or the new ones."""
    file = folder / "deny.txt"
    fresh = folder / "deny.new"
    file.write_text("i29\n")
    with attacked(figures, make_run(folder), "--deny-file", file) as target:
        figures |= {
            "memory_mb": target.memory_before,
            "file_mb": DENIED_LINES * 13 >> 20,
        }
        denied = target.expected[0][0]

        def ask(number: int) -> str:
            """A list without the denied item follows the long file; its other items are not
            compared."""
            status, items = target.ask(number)
            expected = target.expected[number % len(target.expected)]
            is_right = denied not in items or items == expected
            return "right" if status == 200 and is_right else f"wrong ({status})"

        for number, _ in steps:
            is_long = number % 2 == 0
            read = len(target.server.logged(READ_AGAIN))
            with fresh.open("w") as lines:
                numbers = range(DENIED_LINES if is_long else 1)
                lines.writelines(f"sku-{number:08d}\n" for number in numbers)
                lines.write(f"{denied}\n" if is_long else "i29\n")
            began = time.monotonic()
            with repeated(ask) as (counts,):
                fresh.rename(file)
                until(lambda: len(target.server.logged(READ_AGAIN)) > read, 300)  # noqa: B023
                seconds = round(time.monotonic() - began)
            memory = served.memory_mb(target.server)
            figures["most_seconds"] = max(figures["most_seconds"], seconds)
            figures["most_memory_mb"] = max(figures["most_memory_mb"], memory)
            answers = target.answers()
            if is_long:
                assert not any(denied in items for items in answers)
            else:
                assert answers == target.expected
            assert set(counts) == {"right"}, counts
            yield f"{'ten million lines' if is_long else 'one line'}: read"
