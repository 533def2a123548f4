"""The pages of the reference, generated from the code: commands, settings, public interface."""

from typing import Any

import typer

import posrec
from posrec.cli import COMMANDS, app
from posrec.config import described_settings
from posrec.models.registry import MODELS
from posrec.training.settings import Settings


def pages() -> dict[str, str]:
    """Markdown by the name of the page."""
    return {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/python.md": python_page(),
    }


def commands_page() -> str:
    group: Any = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        "Exit codes: 0 success, 1 failure, 2 bad input, 130 interrupted.",
        "",
    ]
    for panel, commands in COMMANDS.items():
        lines += [f"## {panel}", ""]
        for function in commands:
            lines += command_section(
                function.__name__, group.commands[function.__name__]
            )
    return "\n".join(lines)


def command_section(name: str, command: Any) -> list[str]:
    about, _, example = (command.help or "").replace("\\[", "[").partition("Example:")
    lines = [f"### posrec {name}", "", about.strip(), ""]
    if example:
        stripped = [line.strip() for line in example.strip().splitlines()]
        lines += ["```sh", *(line for line in stripped if line), "```", ""]
    lines += ["| argument or option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        name = parameter.name.upper()
        if parameter.param_type_name == "option":
            name = ", ".join(parameter.opts + parameter.secondary_opts)
        meaning = cell(parameter.help or "")
        lines.append(f"| `{name}` | {shown_default(parameter)} | {meaning} |")
    return [*lines, ""]


def shown_default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default in (None, False, [], ()) or callable(default):
        return ""
    return f"`{default}`"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        "`posrec train --set key=value` and `posrec.fit(data, key=value)`.",
        "An unknown key, or a value outside its range, is refused with an error that lists what "
        "is allowed.",
        "`posrec models MODEL` prints the settings of one model.",
        "",
        "## Training",
        "",
        "A model may have other defaults of these: see its table below.",
        "",
    ]
    lines += settings_table(Settings())
    for name, spec in MODELS.items():
        lines += [f"## {name}", "", cell(spec.about) + ".", ""]
        lines += settings_table(spec.config())
        if spec.settings:
            pairs = [f"`{key}={value}`" for key, value in spec.settings.items()]
            lines += [f"Its defaults of training: {', '.join(pairs)}.", ""]
    return "\n".join(lines)


def settings_table(defaults: Any) -> list[str]:
    rows = [
        f"| `{name}` | `{default}` | {cell(description.replace('](', '](../'))} |"
        for name, default, description in described_settings(defaults)
    ]
    return ["| key | default | meaning |", "|---|---|---|", *rows, ""]


def cell(text: str) -> str:
    return " ".join(text.replace("\\[", "[").replace("|", "\\|").split())


def python_page() -> str:
    lines = ["# Python", "", "Everything here is imported as `posrec.NAME`.", ""]
    functions_first = sorted(
        posrec._HOME, key=lambda name: (name[0].isupper(), name.lower())
    )
    for name in functions_first:
        lines += [f"::: {posrec._HOME[name]}.{name}", ""]
    return "\n".join(lines)
