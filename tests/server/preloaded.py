"""What a server imports; a process that has imported it is forked for each server of the tests (server_process.py).

A fork copies one thread alone, so nothing here may start another.
"""

import gc
import pkgutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path

for package in ("cli", "server", "models", "recommend", "nn", "encodings"):
    for module in pkgutil.walk_packages(import_module(f"posrec.{package}").__path__, f"posrec.{package}."):
        with suppress(ImportError):
            import_module(module.name)
TASKS = Path("/proc/self/task")
assert not TASKS.is_dir() or len(list(TASKS.iterdir())) == 1
gc.freeze()
