"""The folder in which artifacts are kept, in a file that imports nothing else."""

import os
from pathlib import Path


def default_cache() -> Path:
    """POSREC_CACHE, or posrec in the user's cache folder."""
    if named := os.environ.get("POSREC_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posrec"
