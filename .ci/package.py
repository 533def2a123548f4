"""Builds the wheel and the source distribution, and tries each in an empty environment.

    python .ci/package.py [--only wheel|sdist]

`make package` runs it, by a Python that has `build`. Everything is written to build/package:
dist/ has the two files to publish, and wheel/ and sdist/ the environments. torch comes from
wherever pip is configured to find it, in the version of constraints.txt.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "package"
# Nothing of the checkout may be found by the installed package.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "VIRTUAL_ENV"))
}
START_TIMEOUT = 120  # seconds until the server must answer


def build() -> dict[str, Path]:
    """The wheel and the source distribution, from which the wheel is built."""
    shutil.rmtree(OUT, ignore_errors=True)
    # setuptools keeps copies of the modules in build/lib, and would pack those that have been
    # deleted since.
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", OUT / "dist", ROOT],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (wheel,), (sdist,) = (
        (OUT / "dist").glob(pattern) for pattern in ("*.whl", "*.tar.gz")
    )
    return {"wheel": wheel, "sdist": sdist}


def check_wheel(path: Path) -> None:
    """It holds exactly the files of src/posrec, and what describes them."""
    with zipfile.ZipFile(path) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = (
        file
        for file in (source / "posrec").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    )
    expected = {file.relative_to(source).as_posix() for file in files}
    report_difference(path.name, packed, expected)


def check_sdist(path: Path) -> None:
    """It holds every file that git tracks, and what setuptools writes."""
    with tarfile.open(path) as archive:
        packed = {
            name.partition("/")[2]
            for name in archive.getnames()
            if archive.getmember(name).isfile()
        }
    if not (ROOT / ".git").exists():
        print(
            "This is not a git checkout: "
            "the files of the source distribution are not compared with those tracked."
        )
        return
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    written = {
        name
        for name in packed
        if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name
    }
    report_difference(path.name, packed - written, set(listed.splitlines()))


def report_difference(name: str, packed: set[str], expected: set[str]) -> None:
    lines = [f"  {file} is missing" for file in sorted(expected - packed)]
    lines += [f"  {file} does not belong there" for file in sorted(packed - expected)]
    if lines:
        raise SystemExit("\n".join([f"{name} has the wrong files:", *lines]))
    print(f"{name}: {len(packed)} files, as wanted.")


def install(name: str, artifact: Path) -> Path:
    """Install the artifact, with its server, in a new environment; the folder of its commands."""
    folder = OUT / name
    venv.create(folder, with_pip=True)
    commands = folder / "bin"
    line = [f"{commands}/pip", "install", "--quiet", "--disable-pip-version-check"]
    line += ["-c", f"{ROOT}/constraints.txt", f"posrec[serve] @ {artifact.as_uri()}"]
    subprocess.run(line, check=True, env=ENVIRONMENT)
    return commands


def try_commands(commands: Path, folder: Path) -> None:
    """From a click log to an answer over HTTP, in an empty folder."""

    def posrec(*arguments: str) -> str:
        done = subprocess.run(
            [commands / "posrec", *arguments],
            cwd=folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(
                f"posrec {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    print(posrec("doctor"))
    clicks = [
        f"{session},sku-{(session + step) % 10},{1000 * session + step}"
        for session in range(200)
        for step in range(4)
    ]
    (folder / "clicks.csv").write_text("\n".join(["session,item,time", *clicks]) + "\n")
    posrec("prepare", "clicks.csv", "--out", "shop")
    posrec("train", "shop", "--model", "coclick", "--out", "run")
    # In the log, every click is followed by the next number.
    answer = json.loads(posrec("recommend", "run", "sku-3", "-k", "3", "--json"))
    expect("posrec recommend", answer["items"][0]["item"], "sku-4")
    with served(commands, folder / "run") as address:
        body = json.dumps({"session": ["sku-3"], "k": 3}).encode()
        request = urllib.request.Request(
            f"{address}/v1/recommend", body, {"Content-Type": "application/json"}
        )
        answer = json.load(urllib.request.urlopen(request))
        expect("POST /v1/recommend", answer["items"][0]["item"], "sku-4")
        page = urllib.request.urlopen(address).read().decode()
        expect("the playground", "<title>" in page and "posrec" in page, True)


def expect(name: str, answer: object, expected: object) -> None:
    if answer != expected:
        raise SystemExit(
            f"{name}: {answer!r} was found where {expected!r} was expected"
        )


@contextmanager
def served(commands: Path, run: Path) -> Iterator[str]:
    """The address of a server of the run, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [commands / "posrec", "serve", run, "--port", str(port)],
            env=ENVIRONMENT,
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + START_TIMEOUT
            while not ready(address):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(
                        f"posrec serve did not start:\n{log.read().decode()}"
                    )
                time.sleep(0.2)
            yield address
        finally:
            server.terminate()
            server.wait(60)


def ready(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/readyz").close()
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build the package, install it into empty environments and try it."
    )
    parser.add_argument(
        "--only", choices=("wheel", "sdist"), help="install and try only this one"
    )
    only = parser.parse_args().only
    artifacts = build()
    check_wheel(artifacts["wheel"])
    check_sdist(artifacts["sdist"])
    for name, artifact in artifacts.items():
        if only in (None, name):
            commands = install(name, artifact)
            with tempfile.TemporaryDirectory() as folder:
                try_commands(commands, Path(folder))
            print(f"{artifact.name} installs and works.")
    print(f"The files to publish are in {(OUT / 'dist').relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
