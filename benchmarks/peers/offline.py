"""What measure.py needs on a machine that reaches no package index: wheels and stand-ins.

    python -m benchmarks.peers.offline build/offline --python 3.12
    pip install --no-index --no-deps build/offline/*.whl
    PYTHONPATH=src:build/offline/standins python -m benchmarks.peers.measure ... --environment here

The first command runs where there is an index, the others on the machine without one: it has torch,
numpy, scipy, matplotlib and posrec's dependencies but polars, and is x86-64 with glibc >= 2.28.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

STAND_IN = Path(__file__).with_name("standin.py")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64")
# The libraries, and what the scripts in benchmarks/peers really use of what they depend on.
WHEELS = (
    "recbole==1.2.1",
    "rectools==0.19.0",
    "replay-rec==0.22.0",
    "implicit==0.7.3",
    "pandas==2.3.3",
    "annotated-types==0.8.0",
    "attrs==23.2.0",
    "colorama==0.4.4",
    "colorlog==4.7.2",
    "lightning==2.6.6",
    "lightning-utilities==0.15.3",
    "pydantic==2.14.3",
    "pydantic-core==2.50.4",
    "python-dateutil==4.0.0",
    "pytorch-lightning==2.5.2",
    "pytz==2026.6",
    "pyyaml==6.0.3",
    "texttable==1.7.2",
    "threadpoolctl==3.8.0",
    "torchmetrics==1.9.0",
    "tqdm==4.70.1",
    "typeguard==4.6.0",
    "typing-extensions==4.16.0",
    "typing-inspection==0.4.5",
    "tzdata==2026.6",
)
# What the libraries import and no training here uses. google is google.protobuf, which PyTorch's
# writer for TensorBoard imports.
STAND_INS = ("google", "polars", "pyarrow", "ray", "sklearn", "tensorboard")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the wheels are put")
    parser.add_argument(
        "--python", default="3.12", help="the other machine's version [default: 3.12]"
    )
    options = parser.parse_args()
    download(options.folder, options.python)
    write_stand_ins(options.folder / "standins")


def download(folder: Path, python: str) -> None:
    """Put the wheels into the folder."""
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    line += ["--only-binary=:all:", f"--python-version={python}", *platforms]
    subprocess.run([*line, f"--dest={folder}", *WHEELS], check=True)


def write_stand_ins(folder: Path) -> None:
    for name in STAND_INS:
        package = folder / name
        package.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(STAND_IN, package / "__init__.py")


if __name__ == "__main__":
    main()
