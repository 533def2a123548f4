"""Damaged runs under load: the run folder is damaged while clients ask, and is made whole again."""

import random
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

from fault_server import SESSIONS, Server, make_run

DAMAGES = ("truncated", "emptied", "removed", "of another run", "noise", "swapped")
SETTLED = 3.0  # seconds until a changed folder is noticed and loaded


class DamagedRuns:
    """Every answer is that of a whole run, and the whole run is served again in the end."""

    def __init__(self, folder: Path) -> None:
        self.whole, self.other = make_run(folder, 1), make_run(folder, 2)
        self.run = folder / "served"
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.whole, self.run)
        self.server = Server(self.run)
        self.expected = self.server.answers()
        self.files = sorted(path.name for path in self.whole.iterdir())
        self.wrong: Counter[str] = Counter()

    def step(self, number: int, draw: random.Random) -> str:
        name = self.files[number % len(self.files)]
        damage = DAMAGES[number // len(self.files) % len(DAMAGES)]
        counts: Counter[str] = Counter()
        stop = threading.Event()

        def ask() -> None:
            place = 0
            while not stop.is_set():
                place = (place + 1) % len(SESSIONS)
                status, items = self.server.ask(SESSIONS[place])
                counts["right" if items == self.expected[place] else f"wrong ({status})"] += 1

        client = threading.Thread(target=ask)
        client.start()
        neighbour = self.files[(number + 1) % len(self.files)]
        damaged(self.run / name, self.other / name, self.run / neighbour, damage, draw)
        time.sleep(SETTLED)
        stop.set()
        client.join()
        self.restore()
        if self.server.process.poll() is not None or self.server.answers() != self.expected:
            return f"failed: {name} {damage}: the whole run is not served again"
        if set(counts) != {"right"}:
            return f"failed: {name} {damage}: {dict(counts)}"
        return "only right answers"

    def restore(self) -> None:
        """Rename a whole run into place, and wait until it answers."""
        fresh, damaged_run = self.run.with_name("fresh"), self.run.with_name("damaged")
        shutil.copytree(self.whole, fresh)
        self.run.rename(damaged_run)
        fresh.rename(self.run)
        shutil.rmtree(damaged_run)
        time.sleep(SETTLED)

    def close(self) -> dict[str, int]:
        about = {"tracebacks": self.server.tracebacks()}
        self.server.stop()
        return about


def damaged(file: Path, other: Path, neighbour: Path, damage: str, draw: random.Random) -> None:
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
