"""What posrec finds on this machine, and what each extra would add."""

import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from posrec.device import THREADS, machine_memory, usable_cores
from posrec.version import __version__

# What each extra of pyproject.toml is for.
EXTRAS = {
    "serve": "posrec serve, posrec export --onnx",
    "scale": "posrec export --index, and serving more than a million items",
    "s3": "logs in S3 (s3://bucket/...)",
    "gs": "logs in Google Cloud Storage (gs://bucket/...)",
    "azure": "logs in Azure Blob Storage (abfs://container/...)",
    "tune": "posrec tune",
    "ray": "--engine ray of posrec prepare, score, tune and reproduce",
    "track": "posrec train --track (TensorBoard)",
}
GIB = 2**30
# A requirement of an extra is written faiss-cpu>=1.10; extra == "scale".
REQUIREMENT = re.compile(r"([\w.-]+)([^;]*)(?:;.*?(?:extra == [\"'](.+)[\"'])?)?")


def diagnose() -> dict[str, Any]:
    """What `posrec doctor --json` prints; sizes are in bytes."""
    import torch

    packages = requirements()
    required = [package for package, extra in packages if extra is None]
    missing = [
        (package["name"], extra)
        for package, extra in packages
        if package["version"] is None
    ]
    gpus = [
        f"{torch.cuda.get_device_name(number)}, {torch.cuda.get_device_properties(number).total_memory / GIB:.0f} GiB"
        for number in range(torch.cuda.device_count())
    ]
    problems = [
        f"{one['name']} is required ({one['wanted']}) and not installed"
        for one in required
        if one["version"] is None
    ]
    if torch.version.cuda and not gpus:
        problems.append(
            f"torch was built for CUDA {torch.version.cuda} and sees no GPU; it computes on the CPU"
        )
    if torch.get_num_threads() > usable_cores():
        problems.append(
            f"{torch.get_num_threads()} threads on {usable_cores()} usable cores ({THREADS}) are slow"
        )
    return {
        "posrec": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory": machine_memory(),
        "free_disk": shutil.disk_usage(Path.cwd()).free,
        "gpus": gpus,
        "required": required,
        "extras": [
            {
                "name": extra,
                "gives": gives,
                "missing": [name for name, of in missing if of == extra],
            }
            for extra, gives in EXTRAS.items()
        ],
        "problems": problems,
    }


def requirements() -> list[tuple[dict[str, str | None], str | None]]:
    """The packages that posrec names, with their versions, each with its extra."""
    try:
        lines = metadata.requires("posrec") or []
    except (
        metadata.PackageNotFoundError
    ):  # it runs from its source, and nothing is known of what it needs
        return []
    packages: list[tuple[dict[str, str | None], str | None]] = []
    for line in lines:
        name, wanted, extra = REQUIREMENT.fullmatch(line).groups()  # type: ignore[union-attr]
        packages.append(
            (
                {
                    "name": name,
                    "version": installed_version(name),
                    "wanted": wanted.strip(),
                },
                extra,
            )
        )
    return packages


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
