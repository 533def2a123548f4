"""What makes a folder a run, for those who need no more of it than that."""

from pathlib import Path

from posrec.errors import InputError

CONFIG = "config.json"


def check_is_run(path: Path) -> None:
    if not (path / CONFIG).is_file():
        raise InputError(f"{path} is no run (it has no {CONFIG}); make one with posrec train")
