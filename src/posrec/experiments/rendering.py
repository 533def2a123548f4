"""What every report shares: Jinja2 templates with one style sheet, and matplotlib figures as small SVG."""

import io
import re
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

# The same drawing gives the same text, letters stay letters, and the fonts are not listed at every letter.
SVG: dict[Any, Any] = {"svg.hashsalt": "posrec", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}


@cache
def environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("posrec.experiments"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **values: Any) -> str:
    """A report from a template in templates/; in HTML every value is escaped unless it is Markup."""
    return environment().get_template(template).render(**values)


def new_figure(rows: int, columns: int, size: tuple[float, float], widths: list[int] | None = None) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot: no window system, no global state

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, width_ratios=widths)


def svg(figure: Any) -> Any:
    """The figure as an SVG element, for a template: Markup, so that it is not escaped."""
    import matplotlib
    from markupsafe import Markup

    text = io.StringIO()
    with matplotlib.rc_context(SVG):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return Markup(shrink(text.getvalue()))


def shrink(drawn: str) -> str:
    """Matplotlib's SVG at about a third of its size, and looking the same.

    Metadata, unused ids, groups without attributes and the style of ticks, which their mark has too, are removed, the
    font is named once, and numbers have two digits.

    >>> shrink('<?xml?><svg a="1"> <g id="text_1"> <text x="1.23456" style="fill: #fff">0.12345</text></g></svg>')
    '<svg font-family="DejaVu Sans, sans-serif" a="1"><text x="1.23" style="fill:#fff">0.12345</text></svg>'
    """
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = drawn.replace("font-family: 'DejaVu Sans', sans-serif;", "")
    drawn = drawn.replace("<svg ", '<svg font-family="DejaVu Sans, sans-serif" ', 1)
    kept: list[bool] = []  # for each open group whether its tags stay
    return re.sub(r"<[^>]*>", lambda tag: shrink_tag(tag[0], kept), re.sub(r">\s+<", "><", drawn))


def shrink_tag(tag: str, kept: list[bool]) -> str:
    if tag == "</g>":
        return tag if kept.pop() else ""
    tag = re.sub(r' id="[a-z0-9A-Z.]+_\d+"| transform="rotate\(-0 [^"]*"', "", tag)
    if tag in ("<g/>", "<g />"):
        return ""
    if tag.startswith("<g") and not tag.endswith("/>"):
        kept.append(tag != "<g>")
        return tag if kept[-1] else ""
    if tag.startswith("<use"):
        tag = tag.replace(' style="stroke: #000000; stroke-width: 0.8"', "")
    tag = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub(r"\s+", " ", tag).replace("; ", ";").replace(": ", ":").replace(' "', '"')
