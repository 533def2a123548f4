"""The command that describes the machine: doctor."""

from typing import TYPE_CHECKING

from rich.table import Table

from posrec.cli.printing import Json, show

if TYPE_CHECKING:
    from posrec.doctor import Diagnosis


def doctor(as_json: Json = False) -> None:
    """Show versions, devices, threads, memory and disk, and what each extra would add.

    Example: posrec doctor
    """
    from posrec.doctor import diagnose

    found = diagnose()
    show(found.as_json(), doctor_table(found), as_json)


def doctor_table(found: "Diagnosis") -> Table:
    from posrec.doctor import GIB

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("posrec", found.posrec)
    table.add_row("python", found.python)
    table.add_row("system", found.system)
    memory = f"{found.memory / GIB:.1f} GiB of memory"
    table.add_row("CPU", f"{found.cores} usable cores, {found.threads} threads, {memory}")
    table.add_row("GPU", "; ".join(found.gpus) or "none; posrec computes on the CPU")
    table.add_row("disk", f"{found.free_disk / GIB:.1f} GiB free in this folder")
    table.add_section()
    for package in found.required:
        table.add_row(package.name, f"{package.version or 'not installed'} (posrec needs {package.wanted or 'any'})")
    table.add_section()
    for extra in found.extras:
        state = "installed" if not extra.missing else f"pip install 'posrec\\[{extra.name}]' for {extra.gives}"
        table.add_row(f"extra {extra.name}", state)
    table.add_section()
    for problem in found.problems or ["none found"]:
        table.add_row("problem" if found.problems else "problems", problem)
    return table
