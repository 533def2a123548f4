"""Writes requirements.lock: what posrec[serve] needs, in the versions of constraints.txt, with
hashes (`make lock`).

    pip install --require-hashes --no-deps -r requirements.lock

Which packages are needed is read from pyproject.toml and the packages that are installed, and the
hashes of their wheels for Linux on x86-64 and aarch64 from the package index. torch is left out:
its CPU build is on an index of its own, and docs/Dockerfile installs it in a line of its own."""

import re
import tomllib
import urllib.request
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple/{name}/"
PYTHON = 12  # the minor version of docs/Dockerfile's Python; wheels for later ones are listed too
MACHINES = ("x86_64", "aarch64")
CUDA = re.compile(
    r"triton|nvidia-.*|cuda-.*"
)  # needed by other builds of torch than the one for CPUs
WHEEL = re.compile(r'href="[^"]*/([^/"#]+\.whl)#sha256=([0-9a-f]{64})"')
INTERPRETER = re.compile(r"(?:cp|py)3(\d*)")


def needed_packages() -> set[str]:
    """The names of everything that posrec[serve] needs, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = set()
    add_needed(
        [*project["dependencies"], *project["optional-dependencies"]["serve"]],
        frozenset(),
        found,
    )
    return found - {"torch"}


def add_needed(lines: Iterable[str], extras: frozenset[str], found: set[str]) -> None:
    for one in map(Requirement, lines):
        environments = [
            {"extra": extra, "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine,
             "python_version": f"3.{PYTHON}", "python_full_version": f"3.{PYTHON}.0", "implementation_name": "cpython"}
            for extra in {"", *extras} for machine in MACHINES
        ]  # fmt: skip
        wanted = one.marker is None or any(
            one.marker.evaluate(environment) for environment in environments
        )
        name = canonicalize_name(one.name)
        if wanted and not CUDA.fullmatch(name) and (name not in found or one.extras):
            found.add(name)
            add_needed(requires(name) or [], frozenset(one.extras), found)


def machines(filename: str) -> set[str]:
    """The machines of MACHINES for which the wheel is made; empty if it is for another system or an
    older Python."""
    found: set[str] = set()
    for tag in parse_wheel_filename(filename)[3]:
        match = INTERPRETER.fullmatch(tag.interpreter)
        if match is None or tag.abi.endswith(
            "t"
        ):  # another implementation, or one without the global lock
            continue
        if tag.abi not in ("none", "abi3") and int(match[1] or 0) < PYTHON:
            continue
        if tag.platform == "any":
            found |= set(MACHINES)
        elif "linux" in tag.platform:
            found |= {machine for machine in MACHINES if tag.platform.endswith(machine)}
    return found


def hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of every wheel that fits."""
    page = urllib.request.urlopen(INDEX.format(name=name)).read().decode()
    found: dict[str, set[str]] = {}
    for filename, digest in WHEEL.findall(page):
        if filename.split("-")[1] == version and (fits := machines(filename)):
            found[digest] = fits
    missing = set(MACHINES).difference(*found.values())
    if missing:
        raise SystemExit(
            f"{name} {version} has no wheel for {', '.join(sorted(missing))}"
        )
    return sorted(found)


def main() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split()
    )
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    lines = [
        "# Written by `make lock` from constraints.txt. torch is not here: docs/Dockerfile says how it is installed."
    ]
    for name in sorted(needed_packages()):
        wheels = "".join(
            f" \\\n    --hash=sha256:{digest}"
            for digest in hashes(name, versions[name])
        )
        lines.append(f"{name}=={versions[name]}{wheels}")
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
