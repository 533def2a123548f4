"""Commands that are killed, run out of disk space or write the same output, the nightly script,
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

from tests.faults.forked import FILE_SIZE_LIMIT, forked
from tests.server.server_process import serving, until

from attacks.served import (
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
from harness import posrec
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run

NIGHTLY = Path(__file__).resolve().parents[2] / "examples/nightly/nightly.py"
COMMANDS = ("prepare", "train", "score", "export")
KILLED = ("prepare", "train", "score") * 3 + (
    "export",
    "export of the run",
)  # an export takes ten times as long
MODELS = ("posrec-plus", "posrec", "coclick")
ONE = "the-only-item"
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
NIGHT = f"import runpy\nmain = runpy.run_path({str(NIGHTLY)!r})['main']\n"
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
        if not at_rename:
            return forked(
                *arguments,
                code=self.code + EXIT,
                kill_after=draw.uniform(0, self.seconds),
            )
        number = draw.randint(1, self.renames)
        is_before = draw.random() < 0.5
        return forked(
            *arguments,
            code=self.code + EXIT,
            before=KILLED_AT_RENAME.format(number=number, before=is_before),
        )


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
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if name == "export of the run":
            shutil.copytree(self.run, self.work / "out")
        return self.work / {"score": "answers.jsonl", "export": "model.onnx"}.get(
            name, "out"
        )

    def arguments(self, name: str, out: Path) -> list[object]:
        return {
            "prepare": ["prepare", self.folder / "clicks.csv", "--out", out],
            "train": ["train", self.folder / "data", "--out", out, *SMALL, "--seed", 1],
            "score": [
                "score",
                self.run,
                self.folder / "sessions.jsonl",
                out,
                "--device",
                "cpu",
            ],
            "export": ["export", self.run, "--onnx", out],
            "export of the run": ["export", out],
        }[name]

    def content(self, name: str, out: Path) -> bytes:
        """What must be the same after the repetition; an export is checked by the command itself."""
        if name == "export of the run":
            return b"" if load_run(out).has_export else b"none"
        file = {
            "prepare": out / "train_items.npy",
            "train": out / "model.safetensors",
        }.get(name, out)
        return (
            file.read_bytes()
            if name != "export"
            else b""
            if file.stat().st_size
            else b"empty"
        )

    def repeat(self, name: str, out: Path) -> str:
        """A command that was disturbed succeeds with the same result, and leaves nothing else."""
        more = (
            {"train": ["--resume"], "export of the run": ["--overwrite"]}.get(name, [])
            if out.exists()
            else []
        )
        again = forked(*self.arguments(name, out), *more)
        assert again.returncode == 0, f"{name} again: {again.stderr.strip()[-200:]}"
        self.check_output(name, out)
        return "then repeated with the same result"

    def check_output(self, name: str, out: Path) -> None:
        assert self.content(name, out) == self.results[name], (
            f"{name} gives another result"
        )
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
        done = commands.undisturbed[name].killed(
            draw, at_rename, *commands.arguments(name, out)
        )
        assert done.returncode in (0, -signal.SIGKILL), (
            f"{name}: {done.stderr.strip()[-200:]}"
        )
        if name == "export of the run":
            asked = forked("recommend", out, "i3", "--device", "cpu")
            assert asked.returncode == 0, (
                f"{name}: the run can't be used: {asked.stderr[-200:]}"
            )
        if done.returncode == 0 or (
            out.exists() and name not in ("train", "export of the run")
        ):
            assert commands.content(name, out) == commands.results[name], (
                f"{name} left a file that differs"
            )
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
                before = FILE_SIZE_LIMIT.format(
                    size=int(share * max(commands.bytes[name]))
                )
            done = forked(*commands.arguments(name, out), before=before)
            if on_disk:
                mount("64m,remount")
            about = (
                f"{name} with {share:.0%} ({'disk' if on_disk else 'file size limit'})"
            )
            assert is_refused(done, 1), (
                f"{about}: exit code {done.returncode}, {done.stderr[-300:]}"
            )
            left = [
                path.name
                for path in work.iterdir()
                if (name, path.name) != ("train", "out")
            ]  # it goes on
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
            done = sorted(
                (first.result(), second.result()), key=lambda one: one.returncode
            )
        one_wrote = done[0].returncode == 0 and is_refused(done[1], 2)
        assert one_wrote, (
            f"{name}: {[(one.returncode, one.stderr[-200:]) for one in done]}"
        )
        commands.check_output(name, out)
        yield f"{name}: one wrote, the other was refused"


def nights(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of the [nightly script](nightly.md#a-night-as-a-cron-job) at a random moment or at a
    rename, while its `current` is served. Answers are those of a whole run, and the next night
    succeeds. Of the killed night nothing is left but the folder of its run, which is removed with
    it (`--keep`)."""
    home = folder / "home"
    log = folder / "nights.csv"
    shutil.rmtree(home, ignore_errors=True)
    write_log(log)
    night = [
        "--log",
        log,
        "--home",
        home,
        "--model",
        "posrec",
        "--device",
        "cpu",
        "--least",
        "10",
    ]
    night += ["--set", "d=16", "--set", "epochs=2", "--keep", "3"]
    undisturbed = Undisturbed(NIGHT, *night)
    known: dict[tuple[str, int], list[str]] = {}
    with attacked(figures, home / "current") as target:

        def ask(place: int) -> str:
            """Every answer of a run is the same as before."""
            place %= len(SESSIONS)
            status, content = answer(
                target.server, "/v1/recommend", {"session": SESSIONS[place], "k": 5}
            )
            if status != 200:
                return f"status {status}"
            items = [one["item"] for one in content["items"]]
            return (
                "right"
                if known.setdefault((content["run"], place), items) == items
                else f"wrong: {items}"
            )

        for number, draw in steps:
            with repeated(ask) as (counts,):
                killed = undisturbed.killed(draw, number % 2 == 1, *night)
                again = forked(*night, code=NIGHT + EXIT)
                time.sleep(SETTLED)
            succeeds = killed.returncode in (
                0,
                3,
                -signal.SIGKILL,
            ) and again.returncode in (0, 3)
            errors = (killed.stderr + again.stderr)[-300:]
            assert succeeds, f"{killed.returncode}, then {again.returncode}: {errors}"
            folders = (home, home / "runs", home / "data")
            left = [
                path.name
                for folder in folders
                for path in folder.glob(".*")
                if path.name != ".lock"
            ]
            served = Recommender.load(home / "current", "cpu")
            expected = [
                [one.item for one in served.recommend(session, 5)]
                for session in SESSIONS
            ]
            assert set(counts) == {"right"}, counts
            assert target.answers() == expected
            assert not left, f"left {left}"
            yield (
                "killed, then repeated"
                if killed.returncode < 0
                else "done before the kill"
            )


def one_item(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """A catalogue of one item, with posrec-plus, posrec and coclick: `prepare`, `train`,
    `evaluate`, `recommend`, `score`, `export`, `serve`. Every command recommends it."""
    clicks = [
        f"s{n},{ONE},{1_700_000_000_000 + 3_600_000 * n + m}"
        for n in range(60)
        for m in range(2 + n % 3)
    ]
    (folder / "one.csv").write_text(
        "\n".join(["session_id,item_id,timestamp", *clicks]) + "\n"
    )
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
            assert is_right, (
                f"{model}: {line[0]}: exit code {done.returncode}: {output}"
            )
        with serving(run, onnx=True, forked=False) as server:
            items = [one["item"] for one in server.recommend(ONE).json()["items"]]
        assert items == json.loads(answers.read_text())["items"] == [ONE], (
            f"{model}: {items}, {answers.read_text()}"
        )
        assert not tracebacks(server), model
        yield f"{model}: all commands"


def different_ranks(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """`torchrun` of two processes with different datasets or options. Both end, with a sentence
    that names the difference, and nothing is written."""
    make_run(folder)
    write_log(folder / "shorter.csv", 380)
    (folder / "fewer.csv").write_text(
        (folder / "clicks.csv").read_text().replace(",i3,", ",i4,")
    )
    for name in ("shorter", "fewer"):
        done = forked(
            "prepare", folder / f"{name}.csv", "--out", folder / name, "--overwrite"
        )
        assert done.returncode == 0, done.stderr
    # Of the second process: its dataset, its seed, and how the message names the difference.
    differences = (
        ("shorter", 0, "dataset is"),
        ("fewer", 0, "items is 30, and 29"),
        ("data", 1, "seed is 0, and 1"),
    )
    for number, draw in steps:
        other, seed, named = differences[number % 3]
        out = folder / "ranks"
        model = draw.choice(MODELS[:2])
        train = " ".join(
            posrec(
                "train",
                "$DATA",
                "--model",
                model,
                "--out",
                out,
                "--device",
                "cpu",
                "--seed",
                "$SEED",
            )
        )
        first, second = (
            f"DATA={folder / data}; SEED={seed}"
            for data, seed in (("data", 0), (other, seed))
        )
        script = f"if [ $RANK = 0 ]; then {first}; else {second}; fi; exec {train}"
        line = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "--no-python",
            "sh",
            "-c",
            script,
        ]
        done = subprocess.run(
            [sys.executable, *line],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        said = (
            "process 0 and process 1 of the training have different data or options"
            in done.stderr
        )
        is_named = (
            done.returncode and said and named in done.stderr and not out.exists()
        )
        assert is_named, f"{other}: exit code {done.returncode}, {done.stderr[-300:]}"
        yield f"{named.partition(' ')[0]}: named"


def ray_kills(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Kill -9 of a worker of Ray during `posrec score --engine ray`. The answers are those of one
    process."""
    if find_spec("ray") is None:
        raise Missing("ray is not installed (posrec[ray])")
    work = folder / "by-ray"
    work.mkdir(exist_ok=True)
    sessions = work / "sessions.jsonl"
    out = work / "answers.jsonl"
    sessions.write_text(
        "".join(f'{{"session": ["i{n % 30}", "i{n % 7}"]}}\n' for n in range(200_000))
    )
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
