"""What reports are made of: a Jinja2 template, and matplotlib figures."""

import io
from typing import Any

# The same drawing gives the same text, and letters stay letters.
SVG: dict[Any, Any] = {
    "svg.hashsalt": "posrec",
    "svg.fonttype": "none",
    "font.sans-serif": ["DejaVu Sans"],
}


def render(template: str, **values: Any) -> str:
    """A report from a template in templates/."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("posrec.experiments"),
        autoescape=".html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def new_figure(
    rows: int, columns: int, size: tuple[float, float], widths: list[int] | None = None
) -> tuple[Any, Any]:
    # Not pyplot: no window system, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, width_ratios=widths)


def svg(figure: Any) -> Any:
    """An SVG element for a template: Markup, so that it is not escaped."""
    import matplotlib
    from markupsafe import Markup

    file = io.StringIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(file, format="svg", metadata={"Date": None})
    document = file.getvalue()
    return Markup(document[document.index("<svg") :])
