"""Prints the branch coverage of the last test run, a line for each room of src/posrec.

The figures are for readers and are not enforced. Processes that tests start are not measured.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import coverage


def main() -> None:
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for name, report in files_of_the_last_run().items():
        within = Path(name).parts[Path(name).parts.index("posrec") + 1 :]
        room = within[0] if len(within) > 1 else "posrec"
        rooms[room].update(report["summary"])
    print("Covered by the tests, in percent: lines, branches")
    for room, sums in sorted(rooms.items()):
        lines = share(sums["covered_lines"], sums["num_statements"])
        branches = share(sums["covered_branches"], sums["num_branches"])
        print(f"  {room:12} {lines} {branches}")


def files_of_the_last_run() -> dict[str, dict[str, dict[str, float]]]:
    last_run = coverage.Coverage()
    last_run.load()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        last_run.json_report(outfile=str(file))
        files: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text())[
            "files"
        ]
    return files


def share(covered: float, of_all: float) -> str:
    return f"{100 * covered / of_all:5.1f}" if of_all else "    -"


if __name__ == "__main__":
    main()
