"""Writes requirements.lock (`make lock`): what posrec[serve] needs, pinned, with hashes.

    pip install --require-hashes --no-deps -r requirements.lock

Which packages are needed is read from pyproject.toml and the packages that are installed, and the
hashes of their wheels for Linux on x86-64 and aarch64 from the package index. torch is left out:
its CPU build is on another index, and docs/Dockerfile installs it in a line of its own.
"""

import re
import tomllib
import urllib.request
from collections.abc import Iterable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple/{name}/"
PYTHON = 12  # the minor version of docs/Dockerfile's Python; wheels for later ones are listed too
MACHINES = ("x86_64", "aarch64")
# Needed by other builds of torch than the one for CPUs.
CUDA = re.compile(r"triton|nvidia-.*|cuda-.*")
WHEEL = re.compile(r'href="[^"]*/([^/"#]+\.whl)#sha256=([0-9a-f]{64})"')
INTERPRETER = re.compile(r"(?:cp|py)3(\d*)")


def needed_packages() -> set[NormalizedName]:
    """The names of everything that posrec[serve] needs, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    names: set[NormalizedName] = set()
    add_needed(lines, frozenset(), names)
    return {name for name in names if name != "torch"}


def add_needed(
    lines: Iterable[str], extras: frozenset[str], names: set[NormalizedName]
) -> None:
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if CUDA.fullmatch(name) or not applies(requirement, extras):
            continue
        if name not in names or requirement.extras:
            names.add(name)
            add_needed(requires(name) or [], frozenset(requirement.extras), names)


def applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether the requirement holds on one of MACHINES, with one of the extras or without."""
    if requirement.marker is None:
        return True
    for extra in {"", *extras}:
        for machine in MACHINES:
            environment = {
                "extra": extra,
                "sys_platform": "linux",
                "platform_system": "Linux",
                "platform_machine": machine,
                "python_version": f"3.{PYTHON}",
                "python_full_version": f"3.{PYTHON}.0",
                "implementation_name": "cpython",
            }
            if requirement.marker.evaluate(environment):
                return True
    return False


def machines(filename: str) -> set[str]:
    """The machines of MACHINES for which the wheel is made, if its Python and system fit."""
    fitting: set[str] = set()
    for tag in parse_wheel_filename(filename)[3]:
        match = INTERPRETER.fullmatch(tag.interpreter)
        # Another implementation, or one without the global lock.
        if match is None or tag.abi.endswith("t"):
            continue
        if tag.abi not in ("none", "abi3") and int(match[1] or 0) < PYTHON:
            continue
        if tag.platform == "any":
            fitting |= set(MACHINES)
        elif "linux" in tag.platform:
            fitting |= {
                machine for machine in MACHINES if tag.platform.endswith(machine)
            }
    return fitting


def hashes(name: str, version: str) -> list[str]:
    """The SHA-256 of every wheel that fits."""
    page = urllib.request.urlopen(INDEX.format(name=name)).read().decode()
    machines_of: dict[str, set[str]] = {}
    for filename, digest in WHEEL.findall(page):
        if filename.split("-")[1] == version and machines(filename):
            machines_of[digest] = machines(filename)
    missing = set(MACHINES).difference(*machines_of.values())
    if missing:
        raise SystemExit(
            f"{name} {version} has no wheel for {', '.join(sorted(missing))}"
        )
    return sorted(machines_of)


def main() -> None:
    versions = {}
    for line in (ROOT / "constraints.txt").read_text().split():
        name, version = line.split("==")
        versions[canonicalize_name(name)] = version
    lines = [
        "# Written by `make lock` from constraints.txt. torch is not here: "
        "docs/Dockerfile says how it is installed."
    ]
    for package in sorted(needed_packages()):
        version = versions[package]
        digests = hashes(package, version)
        wheels = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
        lines.append(f"{package}=={version}{wheels}")
    (ROOT / "requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
