"""What a server imports; a process that has imported it is forked for each server of the tests
(server_process.py).

A fork copies one thread alone, so nothing here may start another.
"""

import gc
import pkgutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# Without posrec.server: prometheus_client reads the environment of a worker when it is imported.
for library in (
    "granian",
    "starlette.applications",
    "starlette.middleware.cors",
    "redis.asyncio",
    "uvloop",
):
    import_module(library)
for package in ("cli", "models", "recommend", "nn", "encodings"):
    for module in pkgutil.walk_packages(
        import_module(f"posrec.{package}").__path__, f"posrec.{package}."
    ):
        if not module.name.startswith(
            "posrec.recommend.files."
        ):  # no server's, and polars starts threads
            with suppress(ImportError):
                import_module(module.name)
TASKS = Path("/proc/self/task")
assert not TASKS.is_dir() or len(list(TASKS.iterdir())) == 1
gc.freeze()
