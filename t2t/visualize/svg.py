"""A matplotlib figure as SVG within a page, in the colours of the page's text."""

import io
import re

import matplotlib
from matplotlib.figure import Figure

from t2t.visualize.figures import INK

SETTINGS = {
    "svg.fonttype": "none",  # text stays text
    "image.composite_image": False,  # maps keep their own pixels
}


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element; `name` is unique within the page."""
    file = io.StringIO()
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # Groups have ids such as axes_1 in every figure; nothing refers to them.
    svg = re.sub(r' id="[A-Za-z0-9]+_[0-9]+"', "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)
    return svg.replace(INK, "currentColor")
