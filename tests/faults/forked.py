"""Commands in processes of their own, forked from one that has imported everything.

Importing torch takes most of a process's time. One process imports it once and forks a child for
each command. It has a single thread, since a fork copies only one: polars, whose import starts
threads, is imported by the children."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import posrec

FORKING = """
import gc, json, os, pkgutil, signal, sys, time, traceback
from contextlib import suppress
from importlib import import_module
import torch, torch._dynamo
sys.modules["polars"] = None  # modules that need it can't be imported yet
import posrec.cli, typer.rich_utils
for package in ("cli", "data", "models", "training", "evaluation", "recommend"):
    folders = import_module("posrec." + package).__path__
    for module in pkgutil.walk_packages(folders, f"posrec.{package}."):
        with suppress(ImportError):
            import_module(module.name)
del sys.modules["polars"]
assert not os.path.exists("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1
gc.freeze()

def run(job):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(job[name], os.O_WRONLY), number)
    sys.argv = ["posrec", *job["arguments"]]
    try:
        exec(job["code"], {"__name__": "__main__"})
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        run(job)
    if job["kill_after"] is not None:
        time.sleep(job["kill_after"])
        os.kill(child, signal.SIGKILL)  # a child that has ended keeps its exit code
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
COMMAND = "from posrec.cli import main\nmain()\n"
# For `before`: no file may become larger, which fails as a write to a full disk does.
FILE_SIZE_LIMIT = (
    "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
)


@functools.cache
def forking(forker: int) -> "subprocess.Popen[str]":
    source = Path(posrec.__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", FORKING],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def forked(
    *arguments: object,
    code: str = COMMAND,
    before: str = "",
    kill_after: float | None = None,
    forker: int = 0,
) -> "subprocess.CompletedProcess[str]":
    """`posrec ARGUMENTS` in a process of its own, or `code`; `before` is run first.

    It is killed after `kill_after` seconds. A forker runs one command at a time.
    """
    process = forking(forker)
    assert process.stdin is not None
    assert process.stdout is not None
    words = list(map(str, arguments))
    with (
        tempfile.NamedTemporaryFile("r") as out,
        tempfile.NamedTemporaryFile("r") as err,
    ):
        job = {
            "arguments": words,
            "code": before + code,
            "stdout": out.name,
            "stderr": err.name,
            "kill_after": kill_after,
        }
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        status = int(process.stdout.readline())
        return subprocess.CompletedProcess(words, status, out.read(), err.read())
