"""Commands that are killed, run out of disk space or write the same output, the nightly script, processes of torchrun
and of Ray, and a catalogue of one item."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fault_server import (
    SESSIONS,
    SETTLED,
    SMALL,
    Attack,
    Missing,
    Server,
    ServerAttack,
    answer,
    make_run,
    repeated,
    require,
    wait_until,
    write_log,
)
from harness import posrec
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.faults.forked import FILE_SIZE_LIMIT, forked

COMMANDS = ("prepare", "train", "score", "export")
KILLED = ("prepare", "train", "score") * 3 + ("export", "export of the run")  # an export takes ten times as long
MODELS = ("posrec-plus", "posrec", "coclick")
ONE = "the-only-item"
# Of the second process: its dataset, its seed, and how the message names the difference.
KILLED_AT_RENAME = """
import os, signal
left = [{number}]
def wrapped(really):
    def rename(*arguments, **options):
        left[0] -= 1
        if left[0] == 0 and {before}:
            os.kill(os.getpid(), signal.SIGKILL)
        result = really(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return rename
os.rename, os.replace = wrapped(os.rename), wrapped(os.replace)
"""
RENAMES_COUNTED = KILLED_AT_RENAME.format(number=0, before=False)
RENAMES_PRINTED = "\ntry:\n    main()\nfinally:\n    print('renames', -left[0])\n"
COMMAND = "from posrec.cli import main\n"
NIGHTLY = Path(__file__).resolve().parents[1] / "examples/nightly/nightly.py"
NIGHT = f"import runpy\nmain = runpy.run_path({str(NIGHTLY)!r})['main']\n"


def killed_at_rename(draw: random.Random, renames: int) -> str:
    """Code for `forked`: the process kills itself before or after one of its renames."""
    return KILLED_AT_RENAME.format(number=draw.randint(1, renames), before=draw.random() < 0.5)


def renames_of(done: "subprocess.CompletedProcess[str]") -> int:
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rpartition("renames ")[2])


def last_line(done: "subprocess.CompletedProcess[str]") -> str:
    return done.stderr.strip().rpartition("\n")[2]


class Commands(Attack):
    """Commands on small data, with what an undisturbed run of each takes, writes and results in."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.run, self.work = folder, make_run(folder), folder / "disturbed"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        sessions = "".join(f'{{"session": ["i{n % 30}", "i{(n + 1) % 30}"]}}\n' for n in range(2000))
        (folder / "sessions.jsonl").write_text(sessions)
        self.seconds: dict[str, float] = {}
        self.renames: dict[str, int] = {}
        self.bytes: dict[str, list[int]] = {}  # of each file that is written
        self.results: dict[str, bytes] = {}
        for name in (*COMMANDS, "export of the run"):
            out = self.fresh(name)
            began = time.monotonic()
            code = COMMAND + RENAMES_PRINTED
            self.renames[name] = renames_of(forked(*self.arguments(name, out), before=RENAMES_COUNTED, code=code))
            self.seconds[name], self.results[name] = time.monotonic() - began, self.content(name, out)
            self.bytes[name] = [path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file()]

    def fresh(self, name: str) -> Path:
        """Where the command writes, in an empty folder."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if name == "export of the run":
            shutil.copytree(self.run, self.work / "out")
        return self.work / {"score": "answers.jsonl", "export": "model.onnx"}.get(name, "out")

    def arguments(self, name: str, out: Path) -> list[object]:
        return {
            "prepare": ["prepare", self.folder / "clicks.csv", "--out", out],
            "train": ["train", self.folder / "data", "--out", out, *SMALL, "--seed", 1],
            "score": ["score", self.run, self.folder / "sessions.jsonl", out, "--device", "cpu"],
            "export": ["export", self.run, "--onnx", out],
            "export of the run": ["export", out],
        }[name]

    def content(self, name: str, out: Path) -> bytes:
        """What must be the same after the repetition; an export is checked by the command itself."""
        if name == "export of the run":
            return b"" if load_run(out).has_export else b"none"
        file = {"prepare": out / "train_items.npy", "train": out / "model.safetensors"}.get(name, out)
        return file.read_bytes() if name != "export" else b"" if file.stat().st_size else b"empty"

    def repeat(self, name: str, out: Path) -> str:
        """A command that was disturbed succeeds with the same result, and leaves nothing else."""
        more = {"train": ["--resume"], "export of the run": ["--overwrite"]}.get(name, []) if out.exists() else []
        again = forked(*self.arguments(name, out), *more)
        require(again.returncode == 0, f"{name} again: {again.stderr.strip()[-200:]}")
        self.check_output(name, out)
        return "then repeated with the same result"

    def check_output(self, name: str, out: Path) -> None:
        require(self.content(name, out) == self.results[name], f"{name} gives another result")
        left = [path.name for path in out.parent.iterdir() if path != out]
        require(not left, f"{name} left {left}")


class CommandKills(Commands):
    """Kill -9 of `prepare`, `train`, `score` or `export`, at a random moment of its work or at a rename. Nothing
    half-written is left, and the same command succeeds afterwards with the same result."""

    def step(self, number: int, draw: random.Random) -> str:
        name = KILLED[number % len(KILLED)]
        out = self.fresh(name)
        if number // len(KILLED) % 2:
            done = forked(*self.arguments(name, out), before=killed_at_rename(draw, self.renames[name]))
        else:
            done = forked(*self.arguments(name, out), kill_after=draw.uniform(0, self.seconds[name]))
        require(done.returncode in (0, -signal.SIGKILL), f"{name}: {done.stderr.strip()[-200:]}")
        if name == "export of the run":
            asked = forked("recommend", out, "i3", "--device", "cpu")
            require(asked.returncode == 0, f"{name}: the run can't be used: {asked.stderr[-200:]}")
        if done.returncode == 0 or (out.exists() and name not in ("train", "export of the run")):
            require(self.content(name, out) == self.results[name], f"{name} left a file that differs")
            return f"{name}: complete"
        return f"{name}: killed, {self.repeat(name, out)}"


class FullDisk(Commands):
    """`prepare`, `train`, `score` or `export` with a tenth, a half or nine tenths of the space that it needs, on a real
    full file system and with a limit on the size of files. The error is one line, nothing half-written is left, and
    with enough space the same command succeeds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mounted = os.geteuid() == 0 and self.mount("64m")

    def mount(self, options: str) -> bool:
        line = ["mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", str(self.work)]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    def step(self, number: int, draw: random.Random) -> str:
        name, share = COMMANDS[number % 4], (0.1, 0.5, 0.9)[number // 4 % 3]
        out, before = self.fresh(name), ""
        on_disk = self.mounted and number // 12 % 2 == 1
        if on_disk:
            pages = sum(-(-size // 4096) for size in self.bytes[name])
            self.mount(f"{max(1, int(share * pages)) * 4096},remount")
        else:
            before = FILE_SIZE_LIMIT.format(size=int(share * max(self.bytes[name])))
        done = forked(*self.arguments(name, out), before=before)
        if on_disk:
            self.mount("64m,remount")
        about = f"{name} with {share:.0%} ({'disk' if on_disk else 'file size limit'})"
        is_refused = done.returncode == 1 and "Traceback" not in done.stderr and last_line(done).startswith("error: ")
        require(is_refused, f"{about}: exit code {done.returncode}, {done.stderr[-300:]}")
        goes_on = [self.work / "out", self.work / "answers.jsonl.parts"]  # a training, and the parts of a score
        left = [path.name for path in self.work.iterdir() if name not in ("train", "score") or path not in goes_on]
        require(not left, f"{about} left {left}")
        return f"{name}: refused, {self.repeat(name, out)}"

    def close(self) -> dict[str, Any]:
        if self.mounted:
            subprocess.run(["umount", str(self.work)], check=True)
        return super().close()


class TwoWriters(Commands):
    """`prepare`, `train`, `score` or `export` twice at once, with the same output. One succeeds, the other says in a
    line why it does not, and the output is that of one."""

    def step(self, number: int, draw: random.Random) -> str:
        name = COMMANDS[number % len(COMMANDS)]
        out = self.fresh(name)
        with ThreadPoolExecutor(2) as both:
            first = both.submit(forked, *self.arguments(name, out))
            time.sleep(draw.uniform(0, 0.8 * self.seconds[name]))
            second = both.submit(forked, *self.arguments(name, out), forker=1)
            done = sorted((first.result(), second.result()), key=lambda one: one.returncode)
        is_refused = [one.returncode for one in done] == [0, 2] and last_line(done[1]).startswith("error: ")
        require(is_refused, f"{name}: {[(one.returncode, one.stderr[-200:]) for one in done]}")
        self.check_output(name, out)
        return f"{name}: one wrote, the other was refused"


class Nights(ServerAttack):
    """Kill -9 of the [nightly script](nightly.md#a-night-as-a-cron-job) at a random moment or at a rename, while its
    `current` is served. Answers are those of a whole run, and the next night succeeds. Of the killed night nothing is
    left but the folder of its run, which is removed with it (`--keep`)."""

    def __init__(self, folder: Path) -> None:
        self.home, log = folder / "home", folder / "nights.csv"
        shutil.rmtree(self.home, ignore_errors=True)
        write_log(log)
        self.options = ["--log", log, "--home", self.home, "--model", "posrec", "--device", "cpu", "--least", "10"]
        self.options += ["--set", "d=16", "--set", "epochs=2", "--keep", "3"]
        began = time.monotonic()
        self.renames = renames_of(self.night(before=RENAMES_COUNTED, code=NIGHT + RENAMES_PRINTED))
        self.seconds = time.monotonic() - began
        super().__init__(self.home / "current")

    def night(self, **how: Any) -> "subprocess.CompletedProcess[str]":
        return forked(*self.options, **{"code": NIGHT + "raise SystemExit(main())\n", **how})

    def step(self, number: int, draw: random.Random) -> str:
        answers: dict[tuple[str, int], list[str]] = {}

        def ask(place: int) -> str:
            """Every answer of a run is the same as before."""
            session = place % len(SESSIONS)
            status, content = answer(self.server.port, "/v1/recommend", {"session": SESSIONS[session], "k": 5})
            if status != 200:
                return f"status {status}"
            items = [one["item"] for one in content["items"]]
            return "right" if answers.setdefault((content["run"], session), items) == items else f"wrong: {items}"

        with repeated(ask) as (counts,):
            if number % 2:
                killed = self.night(before=killed_at_rename(draw, self.renames))
            else:
                killed = self.night(kill_after=draw.uniform(0, self.seconds))
            again = self.night()
            time.sleep(SETTLED)
        succeeds = killed.returncode in (0, 3, -signal.SIGKILL) and again.returncode in (0, 3)
        errors = (killed.stderr + again.stderr)[-300:]
        require(succeeds, f"{killed.returncode}, then {again.returncode}: {errors}")
        folders = (self.home, self.home / "runs", self.home / "data")
        left = [path.name for folder in folders for path in folder.glob(".*") if path.name != ".lock"]
        served = Recommender.load(self.home / "current", "cpu")
        expected = [[one.item for one in served.recommend(session, 5)] for session in SESSIONS]
        is_right = set(counts) == {"right"} and self.server.answers() == expected
        require(is_right and not left, f"left {left}, {dict(counts)}")
        return "killed, then repeated" if killed.returncode < 0 else "done before the kill"


class OneItem(Attack):
    """A catalogue of one item, with posrec-plus, posrec and coclick: `prepare`, `train`, `evaluate`, `recommend`,
    `score`, `export`, `serve`. Every command recommends it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        clicks = [f"s{n},{ONE},{1_700_000_000_000 + 3_600_000 * n + m}" for n in range(60) for m in range(2 + n % 3)]
        (folder / "one.csv").write_text("\n".join(["session_id,item_id,timestamp", *clicks]) + "\n")
        (folder / "one.jsonl").write_text(f'["{ONE}"]\n')

    def step(self, number: int, draw: random.Random) -> str:
        model, data, run = MODELS[number % 3], self.folder / f"one-{number}", self.folder / f"one-run-{number}"
        answers, network = self.folder / f"one-{number}.jsonl", self.folder / f"one-{number}.onnx"
        for line, code in (
            (("prepare", self.folder / "one.csv", "--out", data), 0),
            (("train", data, "--model", model, "--out", run, "--device", "cpu"), 0),
            (("evaluate", run, data, "--device", "cpu", "--json"), 0),
            (("recommend", run, ONE, "--device", "cpu", "--explain", "--json"), 0),
            (("recommend", run, ONE, "--device", "cpu", "--exclude-seen"), 0),
            (("score", run, self.folder / "one.jsonl", answers, "--device", "cpu"), 0),
            (("export", run, "--onnx", network), 2 if model == "coclick" else 0),
        ):
            done = forked(*line)
            is_right = done.returncode == code and "Traceback" not in done.stderr and "nan" not in done.stdout
            output = (done.stdout + done.stderr)[-300:]
            require(is_right, f"{model}: {line[0]}: exit code {done.returncode}: {output}")
        with Server(run, onnx=True) as server:
            served = server.ask([ONE])
        is_right = served == (200, [ONE]) and json.loads(answers.read_text())["items"] == [ONE]
        require(is_right and not server.tracebacks(), f"{model}: {served}, {answers.read_text()}")
        return f"{model}: all commands"


class DifferentRanks(Attack):
    """`torchrun` of two processes with different datasets or options. Both end, with a sentence that names the
    difference, and nothing is written."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        make_run(folder)
        write_log(folder / "shorter.csv", 380)
        text = (folder / "clicks.csv").read_text()
        (folder / "fewer.csv").write_text(text.replace(",i3,", ",i4,"))
        for name in ("shorter", "fewer"):
            done = forked("prepare", folder / f"{name}.csv", "--out", folder / name, "--overwrite")
            assert done.returncode == 0, done.stderr

    def step(self, number: int, draw: random.Random) -> str:
        differences = (
            ("shorter", 0, "dataset is"),
            ("fewer", 0, "items is 30, and 29"),
            ("data", 1, "seed is 0, and 1"),
        )
        other, seed, named = differences[number % 3]
        out, model = self.folder / "ranks", draw.choice(MODELS[:2])
        train = " ".join(posrec("train", "$DATA", "--model", model, "--out", out, "--device", "cpu", "--seed", "$SEED"))
        first, second = (f"DATA={self.folder / data}; SEED={seed}" for data, seed in (("data", 0), (other, seed)))
        script = f"if [ $RANK = 0 ]; then {first}; else {second}; fi; exec {train}"
        line = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "sh", "-c", script]
        done = subprocess.run([sys.executable, *line], capture_output=True, text=True, timeout=600, check=False)
        said = "process 0 and process 1 of the training have different data or options" in done.stderr
        is_refused = done.returncode and said and named in done.stderr and not out.exists()
        require(is_refused, f"{other}: exit code {done.returncode}, {done.stderr[-300:]}")
        return f"{named.partition(' ')[0]}: named"


class RayKills(Attack):
    """Kill -9 of a worker of Ray during `posrec score --engine ray`. The answers are those of one process."""

    def __init__(self, folder: Path) -> None:
        if find_spec("ray") is None:
            raise Missing("ray is not installed (posrec[ray])")
        super().__init__()
        self.work = folder / "by-ray"
        self.work.mkdir(exist_ok=True)
        sessions, self.out = self.work / "sessions.jsonl", self.work / "answers.jsonl"
        sessions.write_text("".join(f'{{"session": ["i{n % 30}", "i{n % 7}"]}}\n' for n in range(200_000)))
        self.line = ["score", make_run(folder), sessions, self.out, "--device", "cpu", "--overwrite"]
        assert forked(*self.line).returncode == 0
        self.expected = self.out.read_bytes()

    def step(self, number: int, draw: random.Random) -> str:
        line = posrec(*self.line, "--engine", "ray", "--workers", 2)
        scoring = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        parts = self.work / "answers.jsonl.parts" / "answers"
        wait_until(lambda: scoring.poll() is not None or (parts.exists() and any(parts.iterdir())), 600)
        time.sleep(draw.uniform(0, 1))
        workers = [pid for pid in descendants(scoring.pid) if command_line(pid).startswith("ray::call")]
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        error = scoring.communicate(timeout=600)[1]
        is_same = scoring.returncode == 0 and self.out.read_bytes() == self.expected
        require(is_same, f"exit code {scoring.returncode}, {error[-300:]}")
        return "killed, the same answers" if workers else "done before the kill"


def descendants(process: int) -> list[int]:
    """The processes that a process has started, those of these, and so on."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                found += [pid, *descendants(pid)]
    return found


def command_line(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode()
    return ""
