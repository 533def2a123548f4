"""Commands that are killed (kill -9 at random moments and at renames) or that run out of disk space."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from fault_server import make_run

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.faults.forked import FILE_SIZE_LIMIT, forked

COMMANDS = ("prepare", "train", "score", "export")
KILLED = ("prepare", "train", "score") * 3 + ("export",)  # an export takes ten times as long as the others
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
AND_PRINTED = "from posrec.cli import main\ntry:\n    main()\nfinally:\n    print('renames', -left[0])\n"


class Commands:
    """The four commands on small data, with what an undisturbed run of each takes, writes and results in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, make_run(folder, 1)
        self.work = folder / "disturbed"
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        sessions = "".join(f'{{"session": ["i{n % 30}", "i{(n + 1) % 30}"]}}\n' for n in range(2000))
        (folder / "sessions.jsonl").write_text(sessions)
        self.seconds: dict[str, float] = {}
        self.renames: dict[str, int] = {}
        self.bytes: dict[str, list[int]] = {}  # of each file that is written
        self.results: dict[str, bytes] = {}
        for name in COMMANDS:
            out = self.fresh(name)
            began = time.monotonic()
            result = forked(*self.arguments(name, out), before=RENAMES_COUNTED, code=AND_PRINTED)
            assert result.returncode == 0, result.stderr
            self.renames[name] = int(result.stdout.rpartition("renames ")[2])
            self.seconds[name], self.results[name] = time.monotonic() - began, self.content(name, out)
            self.bytes[name] = [path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file()]

    def fresh(self, name: str) -> Path:
        """Where the command writes, in an empty folder."""
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.work / {"score": "answers.jsonl", "export": "model.onnx"}.get(name, "out")

    def arguments(self, name: str, out: Path) -> list[object]:
        match name:
            case "prepare":
                return ["prepare", self.folder / "clicks.csv", "--format", "csv", "--out", out]
            case "train":
                settings = ["--set", "d=16", "--epochs", 2, "--device", "cpu", "--seed", 1, "--no-export"]
                return ["train", self.folder / "data", "--model", "posrec", "--out", out, *settings]
            case "score":
                return ["score", self.run, self.folder / "sessions.jsonl", out, "--device", "cpu"]
        return ["export", self.run, "--onnx", out]

    def content(self, name: str, out: Path) -> bytes:
        """What must be the same after the repetition; an export is checked by the command itself."""
        file = {"prepare": out / "train_items.npy", "train": out / "model.safetensors"}.get(name, out)
        return file.read_bytes() if name != "export" else b"" if file.stat().st_size else b"empty"

    def problem_after(self, name: str, out: Path) -> str:
        """Repeat a command that was disturbed: empty if it succeeds with the same result and leaves nothing else."""
        again = forked(*self.arguments(name, out), *(["--resume"] if out.exists() else []))
        if again.returncode:
            return f"failed: {name} again: {again.stderr.strip()[-200:]}"
        if self.content(name, out) != self.results[name]:
            return f"failed: {name} again gives another result"
        left = [path.name for path in out.parent.iterdir() if path != out]
        return f"failed: {name} left {left}" if left else ""

    def close(self) -> dict[str, int]:
        return {}


class CommandKills(Commands):
    """A killed command leaves no half-written output, and the same command then succeeds with the same result."""

    def step(self, number: int, draw: random.Random) -> str:
        name = KILLED[number % len(KILLED)]
        out = self.fresh(name)
        if number // len(KILLED) % 2:
            rename = draw.randint(1, self.renames[name])
            before = KILLED_AT_RENAME.format(number=rename, before=draw.random() < 0.5)
            done = forked(*self.arguments(name, out), before=before)
        else:
            done = forked(*self.arguments(name, out), kill_after=draw.uniform(0, self.seconds[name]))
        if done.returncode not in (0, -signal.SIGKILL):
            return f"failed: {name}: {done.stderr.strip()[-200:]}"
        if done.returncode == 0 or (out.exists() and name != "train"):
            complete = self.content(name, out) == self.results[name]
            return f"{name}: complete" if complete else f"failed: {name} left a file that differs"
        return self.problem_after(name, out) or f"{name}: killed, then repeated with the same result"


class FullDisk(Commands):
    """A command without space says so in a line and leaves nothing half-written; with space, it then succeeds.

    The space is a tenth, a half and nine tenths of what the command needs: of a real file system where one may be
    mounted (root on Linux), and as the largest size of a file.
    """

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
        where = "disk" if on_disk else "file size limit"
        last = done.stderr.strip().rpartition("\n")[2]
        if done.returncode != 1 or "Traceback" in done.stderr or not last.startswith("error: "):
            return f"failed: {name} with {share:.0%} ({where}): exit code {done.returncode}, {done.stderr[-300:]}"
        goes_on = [self.work / "out", self.work / "answers.jsonl.parts"]  # a training, and the parts of a score
        left = [path.name for path in self.work.iterdir() if name not in ("train", "score") or path not in goes_on]
        if left:
            return f"failed: {name} with {share:.0%} ({where}) left {left}"
        return self.problem_after(name, out) or f"{name}: refused, then repeated with the same result"

    def close(self) -> dict[str, int]:
        if self.mounted:
            subprocess.run(["umount", str(self.work)], check=True)
        return {}
