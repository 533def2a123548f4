"""The folder of all nights: data/NIGHT, judged/NIGHT, runs/NIGHT, and the link `current`."""

import shutil
from pathlib import Path

SERVED = "current"
DATA = "data"
JUDGED = "judged"
RUNS = "runs"


def switch(link: Path, target: Path) -> None:
    """Point `link` to `target` in one step: a reader sees the old target or the new one."""
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def remove_old(home: Path, keep: int) -> None:
    """Remove all but the latest nights, and never the one that is served."""
    served = (home / SERVED).resolve().name
    nights = sorted(path.name for path in (home / DATA).glob("[!.]*") if path.is_dir())
    for name in nights[: max(0, len(nights) - keep)]:
        if name != served:
            remove_night(home, name)


def remove_night(home: Path, name: str) -> None:
    for kind in (DATA, JUDGED, RUNS):
        shutil.rmtree(home / kind / name, ignore_errors=True)
    (home / DATA / f"{name}.bad-lines.jsonl").unlink(missing_ok=True)
