"""A matplotlib figure as SVG within a page, in the colours of the page's text."""

import base64
import io
import re

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from t2t.visualize.layout import INK

SETTINGS = {
    "svg.fonttype": "none",  # text stays text
    "image.composite_image": False,  # maps keep their own pixels
}
MIN_PHOTOGRAPH_PIXELS = 64 * 64
"""Pictures of fewer pixels are maps of tokens, whose edges JPEG would blur."""
PNG = re.compile(r"data:image/png;base64,\s*([A-Za-z0-9+/=\s]+)")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> element; `name` is unique within the page."""
    file = io.StringIO()
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    # Groups and images have ids, such as axes_1 in every figure, that nothing uses.
    svg = re.sub(r' id="([A-Za-z0-9.]+_[0-9]+|image[0-9a-f]+)"', "", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([0-9.]+)px [^;\"]*", r"font-size: \1px", svg)
    # Within a page these need no addresses of namespaces.
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = PNG.sub(lambda found: smaller(found[1]), svg)
    return svg.replace(INK, "currentColor")


def smaller(png: str) -> str:
    """An encoded PNG as a data: URL: with a palette if it has few colours.

    Photographs become JPEG.
    """
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        rgba = np.array(image.convert("RGBA"))
    # Numbers sort many times faster than rows.
    numbers, indices = np.unique(
        rgba.view(">u4").astype(np.uint32), return_inverse=True
    )
    colours = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    file = io.BytesIO()
    if len(colours) <= 256:
        kept = Image.fromarray(indices.reshape(rgba.shape[:2]).astype(np.uint8), "P")
        kept.putpalette(colours[:, :3].tobytes())
        kept.save(file, "PNG", optimize=True, transparency=colours[:, 3].tobytes())
    elif rgba[..., 3].min() == 255 and rgba[..., 3].size > MIN_PHOTOGRAPH_PIXELS:
        Image.fromarray(rgba[..., :3]).save(file, "JPEG", quality=85)
        return as_url("jpeg", file)
    else:
        Image.fromarray(rgba).save(file, "PNG", optimize=True)
    return as_url("png", file)


def as_url(kind: str, file: io.BytesIO) -> str:
    """An encoded image as a data: URL."""
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
