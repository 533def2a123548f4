"""The machine and versions that every result records."""

import os
import platform
from typing import Any

import torch


def conditions() -> dict[str, Any]:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": f"{machine}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
