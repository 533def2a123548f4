"""Files that others wrote or would like to be written: feedback, folders in the way of an output,
pipes, weights that are not numbers, and runs and tables whose authors are hostile."""

import json
import math
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.numpy import load, save

from benchmarks.harness.measuring import measured, posrec
from benchmarks.reliability.served import (
    ITEMS,
    Figures,
    Steps,
    answer,
    attacked,
    copy_of_run,
    make_run,
    write_log,
)
from benchmarks.reliability.serving import rows_of_feedback
from posrec.io import WEIGHTS, load_tensors, save_tensors, write_checksums
from posrec.runs.folder import EXPORT, FILES
from posrec.server.feedback.answer_ids import KEY_FILE
from tests.faults.forked import forked
from tests.server.server_process import Server, children, until

CLAIMS = ("unsigned", "foreign items", "control characters", "killed")
REQUESTS = 50  # in a step
MOST_ROWS_BYTES = 1 << 20  # of a request
MOST_FILE_BYTES = 64 << 20
MOST_MEMORY_MB = 64  # that the server may grow
CONTROLS = "\x01" * 1000  # which takes six bytes each in JSON
MOST_MIB = 1500  # of a command; Python, torch and polars take 400 of them
LIMITED = """
import faulthandler, resource, sys
faulthandler.dump_traceback_later(60, exit=True)
from posrec.cli import main
try:
    main()
finally:
    print("MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""
KNOWN = ["i3", "i4"]  # items of the small run


def folder_bytes(folder: Path) -> dict[str, int]:
    """The size of each file of feedback. A file may be converted meanwhile."""
    sizes = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if path.name != KEY_FILE:
                sizes[path.name] = path.stat().st_size
    return sizes


def claim(kind: str, server: Server) -> dict[str, Any]:
    """A request that claims more than the server answered, or makes its rows long."""
    all_items = [f"i{number}" for number in range(ITEMS)]
    k = 1 if kind == "foreign items" else ITEMS
    _, given = answer(server, "/v1/recommend", {"session": ["i3"], "k": k})
    claimed = {"answer": given["id"], "event": "shown", "items": all_items}
    if kind == "unsigned":
        many = [f"i{number}" for number in range(1000)]
        claimed |= {"answer": "a" * 300, "items": many, "session": CONTROLS}
    elif kind == "control characters":
        claimed |= {"session": CONTROLS, "visitor": CONTROLS}
    return claimed


def feedback_claims(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Fifty requests of feedback: on answers that the server did not give, on items that were not
    in the answer, with ids of control characters; or kill -9 of the worker, whose rows are left to
    convert. A request writes at most 1 MB, and a file has at most 64 MB; only an answer's own items
    are written, and no confirmed row is lost."""
    run = make_run(folder)
    feedback = folder / "claimed"
    shutil.rmtree(feedback, ignore_errors=True)
    confirmed = 0
    for number, _ in steps:
        kind = CLAIMS[number % len(CLAIMS)]
        with attacked(figures, run, "--feedback", feedback) as target:
            server = target.server
            before = folder_bytes(feedback)
            for _ in range(REQUESTS):
                body = claim(kind, server)
                status, written = answer(server, "/v1/feedback", body)
                assert status == 202, f"{kind}: {status}"
                own = {"unsigned": 0, "foreign items": 1}.get(kind, ITEMS)
                assert written["written"] == own, f"{kind}: {written}"
                confirmed += own
                figures["sent_mb"] += len(json.dumps(body)) / 1e6
            sizes = folder_bytes(feedback)
            grown = sum(sizes.values()) - sum(before.values())
            most = 0 if kind == "unsigned" else REQUESTS * MOST_ROWS_BYTES
            assert grown <= most, f"{kind}: {grown:,} bytes were written"
            assert max(sizes.values(), default=0) <= MOST_FILE_BYTES, sizes
            figures["written_mb"] += grown / 1e6
            growth = target.memory_growth_mb()
            assert growth < MOST_MEMORY_MB, f"{kind}: {growth} MB more memory"
            if kind == "killed":
                for pid in children(server):
                    os.kill(pid, signal.SIGKILL)
                until(lambda: target.ask(0)[0] == 200)
        rows = rows_of_feedback(feedback)
        assert rows == confirmed, f"{kind}: {rows:,} rows, {confirmed:,} were confirmed"
        yield f"{kind}: bounded, and no row lost"
    figures["rows"] = confirmed
    figures["sent_mb"] = round(figures["sent_mb"], 1)
    figures["written_mb"] = round(figures["written_mb"], 1)


def pipes(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """The served `--deny-file` becomes a pipe that nobody writes to, is emptied, or repeats one id.
    The rules before stay, a good file is read afterwards, and the server stops within seconds."""
    run = make_run(folder)
    deny = folder / "watched.txt"
    rules = "i1\ni2\ni3\n"
    for number, _ in steps:
        kind = ("pipe", "emptied", "one id")[number % 3]
        deny.unlink(missing_ok=True)
        deny.write_text(rules)
        with attacked(figures, run, "--deny-file", deny) as target:
            logged = len(target.server.log)
            if kind == "pipe":
                deny.unlink()
                os.mkfifo(deny)
            else:
                deny.write_text("" if kind == "emptied" else "i1\n" * 100)
            until(lambda: has_error(target.server, logged))  # noqa: B023
            assert target.answers() == target.expected, f"{kind}: other rules"
            if number % 2:  # else the server is stopped as it is
                deny.unlink()
                deny.write_text(rules + "i4\n")
                until(lambda: "i4" not in target.ask(0)[1])
        yield f"{kind}: refused, and the rules before stay"


def has_error(server: Server, since: int) -> bool:
    return any(line.get("level") == "error" for line in server.log[since:])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def overwritten_projects(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """`prepare --overwrite`, `train --out`, `compare --out` or `demo --out` into the folder of a
    project, which has files of the same names as posrec's. Or the same into a dataset or run with a
    file of the user's. It is refused in a line, and every byte stays."""
    run = make_run(folder)
    data = folder / "data"
    names = ["manifest.json", "config.json", "checksums.json", "comparison.json"]
    for number, draw in steps:
        project = folder / "project"
        shutil.rmtree(project, ignore_errors=True)
        kind = ("project", "dataset with a file", "run with a file")[number % 3]
        if kind == "project":
            project.mkdir()
            (project / ".git").mkdir()
            (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
            for name in draw.sample(names, draw.randint(1, 3)):
                content = draw.choice(['{"name": "Shop"}', '{"schema": "1"}', "[]"])
                (project / name).write_text(content)
            (project / "report.html").write_text("<p>mine</p>")
        else:
            shutil.copytree(data if kind.startswith("dataset") else run, project)
            name = draw.choice(["notes.txt", ".env", "model.py", "data.csv"])
            (project / name).write_text("mine")
        before = contents(project)
        lines: list[list[object]] = [
            ["prepare", folder / "clicks.csv", "--out", project, "--overwrite"],
            ["train", data, "--model", "pop", "--out", project, "--no-export"],
            ["demo", "--out", project, "--prepare-only"],
        ]
        if kind == "project" and not (project / "comparison.json").exists():
            lines.append(["compare", data, "--models", "pop", "--out", project])
        for line in lines:
            done = forked(*line)
            last = done.stderr.strip().rpartition("\n")[2]
            error = f"{line[0]} over a {kind}: {done.returncode}, {last[-200:]}"
            assert done.returncode == 2, error
            assert last.startswith("error: "), error
            assert contents(project) == before, f"{line[0]} changed a {kind}"
        yield f"{kind}: every byte stays"


def weights_that_are_not_numbers(
    folder: Path, steps: Steps, figures: Figures
) -> Iterator[str]:
    """`evaluate`, `export`, `score` or `recommend` of a run with NaN, an infinity or a huge number
    in some of its weights. It ends with a sentence and code 1 or 2, or with finite figures; no JSON
    file holds NaN."""
    values = (math.nan, math.inf, -math.inf, 3e38)
    sessions = folder / "few.jsonl"
    sessions.write_text(json.dumps(KNOWN) + "\n")
    for number, draw in steps:
        run = copy_of_run(folder, "not-numbers")
        tensors, about = load_tensors(run / WEIGHTS)
        for name in draw.sample(sorted(tensors), draw.randint(1, len(tensors))):
            flat = tensors[name].flatten()
            if flat.numel() and torch.is_floating_point(flat):
                count = draw.choice((1, flat.numel()))
                flat[draw.sample(range(flat.numel()), count)] = draw.choice(values)
                tensors[name] = flat.view(tensors[name].shape)
        save_tensors(run / WEIGHTS, tensors, about)
        write_checksums(run, (*FILES, *EXPORT))
        answers = run / "answers.jsonl"
        name = ("evaluate", "export", "score", "recommend")[number % 4]
        line: dict[str, list[object]] = {
            "evaluate": ["evaluate", run, folder / "data", "--device", "cpu"],
            "export": ["export", run],
            "score": ["score", run, sessions, answers, "--device", "cpu"],
            "recommend": ["recommend", run, *KNOWN, "--device", "cpu"],
        }
        outcome = ended_well(name, line[name])
        texts = [path.read_text() for path in run.glob("*.json")]
        for path in run.glob("*.jsonl"):
            texts += path.read_text().splitlines()
        for text in texts:
            json.loads(text, parse_constant=refuse_constant)
        yield f"{name}: {outcome}"


def refuse_constant(name: str) -> None:
    raise AssertionError(f"a JSON file holds {name}")


def ended_well(name: str, line: list[object]) -> str:
    """Without a traceback, a crash, a wait or much memory."""
    done = forked(*line, code=LIMITED)
    error = f"{name}: {done.returncode}, {done.stderr.strip()[-300:]}"
    assert done.returncode in (0, 1, 2), error
    assert "Traceback" not in done.stderr, error
    memory = int(done.stdout.rpartition("MiB")[2])
    assert memory < MOST_MIB, f"{name}: {memory} MiB"
    return "answered" if done.returncode == 0 else "refused in a line"


Change = Callable[[bytes, random.Random], bytes]


def other_bytes(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 3, 20))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def large_number(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    at = draw.randrange(len(changed) - 8)
    number = draw.choice((0, 2**31, 2**40, 2**62, 2**64 - 1))
    changed[at : at + 8] = number.to_bytes(8, "little")
    return bytes(changed)


def cut_off(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def other_arrays(content: bytes, draw: random.Random) -> bytes:
    """Of a safetensors file: other types, dimensions, lengths and values."""
    arrays = load(content)
    name = draw.choice(sorted(arrays))
    array = arrays[name]
    half = array[: len(array) // 2]
    changes = [
        array.astype(draw.choice(("int64", "float64", "float16", "uint8"))),
        array.reshape(-1),
        array[None],
        half,
        array[:0],
        np.concatenate([array, array]),
        np.full_like(array, math.nan) if array.dtype.kind == "f" else half,
    ]
    arrays[name] = np.ascontiguousarray(draw.choice(changes))
    return save(arrays, {"about": "{}"})


CHANGES: dict[str, Change] = {
    "other bytes": other_bytes,
    "a large number": large_number,
    "cut off": cut_off,
    "other arrays": other_arrays,
}
HOSTILE = ("network.onnx", "items.safetensors", "items.faiss", WEIGHTS)


def hostile_files(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """A run whose network, item vectors, index or weights were changed together with their
    checksums, or a Parquet log with changed bytes or with millions of equal rows. A command answers
    or refuses in a line, within a minute and 1.5 GB."""
    run = make_run(folder)
    exported = folder / "exported"
    if not exported.exists():
        shutil.copytree(run, exported)
        index = ["--set", "index=faiss", "--set", "lists=2", "--set", "probes=2"]
        measured(posrec("export", exported, *index))
    log = folder / "log.parquet"
    if not (folder / "clicks.csv").exists():
        write_log(folder / "clicks.csv")
    pl.read_csv(folder / "clicks.csv").write_parquet(log)
    hostile = folder / "hostile"
    out = folder / "hostile-out"
    for number, draw in steps:
        shutil.rmtree(hostile, ignore_errors=True)
        shutil.rmtree(out, ignore_errors=True)
        if number % 5 == 4:
            table = folder / "hostile.parquet"
            table.write_bytes(changed_log(log, draw))
            name = "Parquet"
            line: list[object] = ["prepare", table, "--out", out]
        else:
            name = HOSTILE[number % 5]
            shutil.copytree(exported, hostile)
            content = (hostile / name).read_bytes()
            kinds = [*CHANGES] if name.endswith(".safetensors") else [*CHANGES][:3]
            change = CHANGES[draw.choice(kinds)]
            (hostile / name).write_bytes(change(content, draw))
            write_checksums(hostile, (*FILES, *EXPORT))
            line = ["recommend", hostile, *KNOWN, "--device", "cpu"]
            if name == WEIGHTS:
                line = ["evaluate", hostile, folder / "data", "--device", "cpu"]
        yield f"{name}: {ended_well(name, line)}"


def changed_log(log: Path, draw: random.Random) -> bytes:
    change = draw.choice((other_bytes, large_number, cut_off, None))
    if change is not None:
        return change(log.read_bytes(), draw)
    row = pl.read_parquet(log).head(1)
    equal = row.select(pl.all().repeat_by(draw.choice((10, 30)) << 20).explode())
    equal.write_parquet(log.with_name("equal.parquet"))
    return log.with_name("equal.parquet").read_bytes()
