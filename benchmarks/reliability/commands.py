"""Commands that are killed, run out of disk space or write the same output, nights,
processes of torchrun and of Ray, and a catalogue of one item."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.measuring import posrec
from benchmarks.reliability.served import (
    SESSIONS,
    SETTLED,
    SMALL,
    Figures,
    Missing,
    Steps,
    answer,
    attacked,
    make_run,
    repeated,
    tracebacks,
    write_log,
)
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.faults.forked import FILE_SIZE_LIMIT, forked
from tests.server.server_process import serving, until

COMMANDS = ("prepare", "train", "score", "export")
# An export takes ten times as long as the others, and is killed less often.
KILLED = ("prepare", "train", "score") * 3 + ("export", "export of the run")
MODELS = ("posrec-plus", "posrec", "coclick")
ONE = "the-only-item"
DIFFERENT_RANKS = (
    "process 0 and process 1 of the training have different data or options"
)
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
COMMAND = "from posrec.cli import main\n"
EXIT = "raise SystemExit(main())\n"


class Undisturbed:
    """A program that is run to its end once: how long it takes, and how often it renames a file."""

    def __init__(self, code: str, *arguments: object) -> None:
        self.code = code
        began = time.monotonic()
        before = KILLED_AT_RENAME.format(number=0, before=False)
        printing = "try:\n    main()\nfinally:\n    print('renames', -left[0])\n"
        done = forked(*arguments, before=before, code=code + printing)
        assert done.returncode == 0, done.stderr
        self.seconds = time.monotonic() - began
        self.renames = int(done.stdout.rpartition("renames ")[2])

    def killed(
        self, draw: random.Random, at_rename: bool, *arguments: object
    ) -> "subprocess.CompletedProcess[str]":
        """The program again, killed at a random moment, or before or after one of its renames."""
        code = self.code + EXIT
        if not at_rename:
            kill_after = draw.uniform(0, self.seconds)
            return forked(*arguments, code=code, kill_after=kill_after)
        number = draw.randint(1, self.renames)
        is_before = draw.random() < 0.5
        before = KILLED_AT_RENAME.format(number=number, before=is_before)
        return forked(*arguments, code=code, before=before)


class Commands:
    """Commands on small data, with what an undisturbed run of each takes, writes and results in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = make_run(folder)
        self.work = folder / "disturbed"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        sessions = "".join(
            f'{{"session": ["i{n % 30}", "i{(n + 1) % 30}"]}}\n' for n in range(2000)
        )
        (folder / "sessions.jsonl").write_text(sessions)
        self.undisturbed: dict[str, Undisturbed] = {}
        self.bytes: dict[str, list[int]] = {}  # of each file that is written
        self.results: dict[str, bytes] = {}
        for name in (*COMMANDS, "export of the run"):
            out = self.fresh(name)
            self.undisturbed[name] = Undisturbed(COMMAND, *self.arguments(name, out))
            self.results[name] = self.content(name, out)
            self.bytes[name] = [
                path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file()
            ]

    def fresh(self, name: str) -> Path:
        """Where the command writes, in an empty folder."""
        for path in self.work.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if name == "export of the run":
            shutil.copytree(self.run, self.work / "out")
        files = {"score": "answers.jsonl", "export": "model.onnx"}
        return self.work / files.get(name, "out")

    def arguments(self, name: str, out: Path) -> list[object]:
        sessions = self.folder / "sessions.jsonl"
        return {
            "prepare": ["prepare", self.folder / "clicks.csv", "--out", out],
            "train": ["train", self.folder / "data", "--out", out, *SMALL, "--seed", 1],
            "score": ["score", self.run, sessions, out, "--device", "cpu"],
            "export": ["export", self.run, "--onnx", out],
            "export of the run": ["export", out],
        }[name]

    def content(self, name: str, out: Path) -> bytes:
        """What must be the same after the repetition; the command itself checks an export."""
        match name:
            case "export of the run":
                return b"" if load_run(out).has_export else b"none"
            case "export":
                return b"" if out.stat().st_size else b"empty"
            case "prepare":
                return (out / "train_items.npy").read_bytes()
            case "train":
                return (out / "model.safetensors").read_bytes()
            case _:
                return out.read_bytes()

    def repeat(self, name: str, out: Path) -> str:
        """A command that was disturbed succeeds with the same result, and leaves nothing else."""
        arguments = self.arguments(name, out)
        if name == "train" and out.exists():
            arguments.append("--resume")
        if name == "export of the run" and out.exists():
            arguments.append("--overwrite")
        again = forked(*arguments)
        assert again.returncode == 0, f"{name} again: {again.stderr.strip()[-200:]}"
        self.check_output(name, out)
        return "then repeated with the same result"

    def check_output(self, name: str, out: Path) -> None:
        is_same = self.content(name, out) == self.results[name]
        assert is_same, f"{name} gives another result"
        left = [path.name for path in out.parent.iterdir() if path != out]
        assert not left, f"{name} left {left}"


def is_refused(done: "subprocess.CompletedProcess[str]", code: int) -> bool:
    last = done.stderr.strip().rpartition("\n")[2]
    return (
        done.returncode == code
        and "Traceback" not in done.stderr
        and last.startswith("error: ")
    )


def command_kills(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of `prepare`, `train`, `score` or `export`, at a random moment of its work or at a
    rename. Nothing half-written is left, and the same command succeeds afterwards with the same
    result."""
    commands = Commands(folder)
    for number, draw in steps:
        name = KILLED[number % len(KILLED)]
        out = commands.fresh(name)
        at_rename = number // len(KILLED) % 2 == 1
        arguments = commands.arguments(name, out)
        done = commands.undisturbed[name].killed(draw, at_rename, *arguments)
        error = f"{name}: {done.stderr.strip()[-200:]}"
        assert done.returncode in (0, -signal.SIGKILL), error
        if name == "export of the run":
            asked = forked("recommend", out, "i3", "--device", "cpu")
            error = f"{name}: the run can't be used: {asked.stderr[-200:]}"
            assert asked.returncode == 0, error
        grows_in_place = name in ("train", "export of the run")
        if done.returncode == 0 or (out.exists() and not grows_in_place):
            is_same = commands.content(name, out) == commands.results[name]
            assert is_same, f"{name} left a file that differs"
            yield f"{name}: complete"
        else:
            yield f"{name}: killed, {commands.repeat(name, out)}"


def full_disk(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """`prepare`, `train`, `score` or `export` with a tenth, a half or nine tenths of the space that
    it needs, on a real full file system and with a limit on the size of files. The error is one
    line, nothing half-written is left, and with enough space the same command succeeds."""
    commands = Commands(folder)
    work = commands.work

    def mount(options: str) -> bool:
        line = ["mount", "-t", "tmpfs", "-o", f"size={options}", "tmpfs", str(work)]
        return subprocess.run(line, capture_output=True, check=False).returncode == 0

    is_mounted = os.geteuid() == 0 and mount("64m")
    try:
        for number, _ in steps:
            name = COMMANDS[number % 4]
            share = (0.1, 0.5, 0.9)[number // 4 % 3]
            out = commands.fresh(name)
            before = ""
            on_disk = is_mounted and number // 12 % 2 == 1
            if on_disk:
                pages = sum(-(-size // 4096) for size in commands.bytes[name])
                mount(f"{max(1, int(share * pages)) * 4096},remount")
            else:
                size = int(share * max(commands.bytes[name]))
                before = FILE_SIZE_LIMIT.format(size=size)
            done = forked(*commands.arguments(name, out), before=before)
            if on_disk:
                mount("64m,remount")
            kind = "disk" if on_disk else "file size limit"
            about = f"{name} with {share:.0%} ({kind})"
            error = f"{about}: exit code {done.returncode}, {done.stderr[-300:]}"
            assert is_refused(done, 1), error
            left = [path.name for path in work.iterdir()]
            if name == "train" and "out" in left:
                left.remove("out")  # the training continues from it
            assert not left, f"{about} left {left}"
            yield f"{name}: refused, {commands.repeat(name, out)}"
    finally:
        if is_mounted:
            subprocess.run(["umount", str(work)], check=True)


def two_writers(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """`prepare`, `train`, `score` or `export` twice at once, with the same output. One succeeds,
    the other says in a line why it does not, and the output is that of one."""
    commands = Commands(folder)
    for number, draw in steps:
        name = COMMANDS[number % len(COMMANDS)]
        out = commands.fresh(name)
        with ThreadPoolExecutor(2) as both:
            first = both.submit(forked, *commands.arguments(name, out))
            time.sleep(draw.uniform(0, 0.8 * commands.undisturbed[name].seconds))
            second = both.submit(forked, *commands.arguments(name, out), forker=1)
            processes = (first.result(), second.result())
        winner, loser = sorted(processes, key=lambda process: process.returncode)
        errors = [(done.returncode, done.stderr[-200:]) for done in (winner, loser)]
        one_wrote = winner.returncode == 0 and is_refused(loser, 2)
        assert one_wrote, f"{name}: {errors}"
        commands.check_output(name, out)
        yield f"{name}: one wrote, the other was refused"


def nights(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of [`posrec nightly`](nightly.md#a-night-as-a-cron-job) at a random moment or at a
    rename, while its `current` is served. Answers are those of a whole run, and the next night
    succeeds. Of the killed night nothing is left but the folders of its runs, which are removed
    with it (`--keep`)."""
    home = folder / "home"
    log = folder / "nights.csv"
    shutil.rmtree(home, ignore_errors=True)
    write_log(log)
    night = ["nightly", "--log", log, "--home", home, "--model", "posrec"]
    night += ["--device", "cpu", "--set", "d=16", "--set", "epochs=2", "--keep", "3"]
    night += ["--force"]  # the log is the same every night
    undisturbed = Undisturbed(COMMAND, *night)
    earlier: dict[tuple[str, int], list[str]] = {}
    with attacked(figures, home / "current") as target:

        def ask(number: int) -> str:
            """Every answer of a run is the same as before."""
            session = number % len(SESSIONS)
            body = {"session": SESSIONS[session], "k": 5}
            status, content = answer(target.server, "/v1/recommend", body)
            if status != 200:
                return f"status {status}"
            items = [item["item"] for item in content["items"]]
            expected = earlier.setdefault((content["run"], session), items)
            return "right" if items == expected else f"wrong: {items}"

        for number, draw in steps:
            with repeated(ask) as (counts,):
                killed = undisturbed.killed(draw, number % 2 == 1, *night)
                again = forked(*night, code=COMMAND + EXIT)
                time.sleep(SETTLED)
            errors = (killed.stderr + again.stderr)[-300:]
            error = f"{killed.returncode}, then {again.returncode}: {errors}"
            assert killed.returncode in (0, -signal.SIGKILL), error
            assert again.returncode == 0, error
            assert set(counts) == {"right"}, counts
            served = Recommender.load(home / "current", "cpu")
            assert target.answers() == [
                [item.item for item in served.recommend(session, 5)]
                for session in SESSIONS
            ]
            left = hidden_files(home)
            assert not left, f"left {left}"
            was_killed = killed.returncode < 0
            yield "killed, then repeated" if was_killed else "done before the kill"


def hidden_files(home: Path) -> list[str]:
    """The unfinished files that nights have left."""
    names = [
        path.name
        for folder in (home, *map(home.joinpath, ("runs", "judged", "data")))
        for path in folder.glob(".*")
    ]
    return [name for name in names if name != ".lock"]


def one_item(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """A catalogue of one item, with posrec-plus, posrec and coclick: `prepare`, `train`,
    `evaluate`, `recommend`, `score`, `export`, `serve`. Every command recommends it."""
    lines = ["session_id,item_id,timestamp"]
    for session in range(60):
        start = 1_700_000_000_000 + 3_600_000 * session
        clicks = range(2 + session % 3)
        lines += [f"s{session},{ONE},{start + click}" for click in clicks]
    (folder / "one.csv").write_text("\n".join(lines) + "\n")
    (folder / "one.jsonl").write_text(f'["{ONE}"]\n')
    for number, _ in steps:
        model = MODELS[number % 3]
        data = folder / f"one-{number}"
        run = folder / f"one-run-{number}"
        answers = folder / f"one-{number}.jsonl"
        network = folder / f"one-{number}.onnx"
        for line, code in (
            (("prepare", folder / "one.csv", "--out", data), 0),
            (("train", data, "--model", model, "--out", run, "--device", "cpu"), 0),
            (("evaluate", run, data, "--device", "cpu", "--json"), 0),
            (("recommend", run, ONE, "--device", "cpu", "--explain", "--json"), 0),
            (("recommend", run, ONE, "--device", "cpu", "--exclude-seen"), 0),
            (("score", run, folder / "one.jsonl", answers, "--device", "cpu"), 0),
            (("export", run, "--onnx", network), 2 if model == "coclick" else 0),
        ):
            done = forked(*line)
            is_right = (
                done.returncode == code
                and "Traceback" not in done.stderr
                and "nan" not in done.stdout
            )
            output = (done.stdout + done.stderr)[-300:]
            error = f"{model}: {line[0]}: exit code {done.returncode}: {output}"
            assert is_right, error
        with serving(run, onnx=True, forked=False) as server:
            items = [item["item"] for item in server.recommend(ONE).json()["items"]]
        scored = json.loads(answers.read_text())["items"]
        assert items == scored == [ONE], f"{model}: {items}, {answers.read_text()}"
        assert not tracebacks(server), model
        yield f"{model}: all commands"


def different_ranks(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """`torchrun` of two processes with different datasets or options. Both end, with a sentence
    that names the difference, and nothing is written."""
    make_run(folder)
    write_log(folder / "shorter.csv", 380)
    clicks = (folder / "clicks.csv").read_text()
    (folder / "fewer.csv").write_text(clicks.replace(",i3,", ",i4,"))
    for name in ("shorter", "fewer"):
        log = folder / f"{name}.csv"
        done = forked("prepare", log, "--out", folder / name, "--overwrite")
        assert done.returncode == 0, done.stderr
    # Of the second process: its dataset, its seed, and how the message names the difference.
    differences = (
        ("shorter", 0, "dataset is"),
        ("fewer", 0, "items is 30, and 29"),
        ("data", 1, "seed is 0, and 1"),
    )
    for number, draw in steps:
        other, seed, difference = differences[number % 3]
        out = folder / "ranks"
        model = draw.choice(MODELS[:2])
        first = f"DATA={folder / 'data'}; SEED=0"
        second = f"DATA={folder / other}; SEED={seed}"
        options = ["--model", model, "--out", out, "--device", "cpu", "--seed", "$SEED"]
        train = " ".join(posrec("train", "$DATA", *options))
        script = f"if [ $RANK = 0 ]; then {first}; else {second}; fi; exec {train}"
        line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        line += ["--no-python", "sh", "-c", script]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=600, check=False
        )
        error = f"{other}: exit code {done.returncode}, {done.stderr[-300:]}"
        assert done.returncode, error
        assert DIFFERENT_RANKS in done.stderr, error
        assert difference in done.stderr, error
        assert not out.exists(), error
        yield f"{difference.partition(' ')[0]}: named"


def ray_kills(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of a worker of Ray during `posrec score --engine ray`. The answers are those of one
    process."""
    if find_spec("ray") is None:
        raise Missing("ray is not installed (posrec[ray])")
    work = folder / "by-ray"
    work.mkdir(exist_ok=True)
    sessions = work / "sessions.jsonl"
    out = work / "answers.jsonl"
    lines = [f'{{"session": ["i{n % 30}", "i{n % 7}"]}}\n' for n in range(200_000)]
    sessions.write_text("".join(lines))
    score = ["score", make_run(folder), sessions, out, "--device", "cpu", "--overwrite"]
    assert forked(*score).returncode == 0
    expected = out.read_bytes()
    for _, draw in steps:
        line = posrec(*score, "--engine", "ray", "--workers", 2)
        scoring = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        until(lambda: scoring.poll() is not None or has_begun(work), 600)  # noqa: B023
        time.sleep(draw.uniform(0, 1))
        workers = [
            pid
            for pid in descendants(scoring.pid)
            if command_line(pid).startswith("ray::call")
        ]
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)
        error = scoring.communicate(timeout=600)[1]
        is_same = scoring.returncode == 0 and out.read_bytes() == expected
        assert is_same, f"exit code {scoring.returncode}, {error[-300:]}"
        yield "killed, the same answers" if workers else "done before the kill"


def has_begun(folder: Path) -> bool:
    """Whether a file in the folder that has no name yet has some content."""
    with suppress(FileNotFoundError):  # it has just got its name
        return any(file.stat().st_size for file in folder.glob(".*.unfinished-*"))
    return True


def descendants(process: int) -> list[int]:
    """The processes that a process has started, the ones that these have started, and so on."""
    pids = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for pid in map(int, (task / "children").read_text().split()):
                pids += [pid, *descendants(pid)]
    return pids


def command_line(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().decode()
    return ""
