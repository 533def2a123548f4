"""What a server imports; the process that has imported it is forked for each server of the tests.

A fork copies one thread alone, so nothing here may start another (see server_process.py).
"""

import gc
import pkgutil
from contextlib import suppress
from importlib import import_module
from pathlib import Path

# Without posrec.server: prometheus_client reads the environment of a worker when it is imported.
LIBRARIES = (
    "granian",
    "starlette.applications",
    "starlette.middleware.cors",
    "redis.asyncio",
    "uvloop",
)
PACKAGES = ("cli", "models", "recommend", "nn", "encodings")
# No server scores files, and polars, which that needs, starts threads.
LEFT_OUT = "posrec.recommend.files."
TASKS = Path("/proc/self/task")

for library in LIBRARIES:
    import_module(library)
for package in PACKAGES:
    folders = import_module(f"posrec.{package}").__path__
    for module in pkgutil.walk_packages(folders, f"posrec.{package}."):
        if not module.name.startswith(LEFT_OUT):
            with suppress(ImportError):
                import_module(module.name)
assert not TASKS.is_dir() or len(list(TASKS.iterdir())) == 1
gc.freeze()
