"""Runs a notebook and keeps what it prints and draws; renders it as a page.

    python website/notebook.py docs/notebooks/*.ipynb

runs the notebooks in an empty folder and writes their outputs into them. Cells print,
and show figures by `plt.show()`; they need no Jupyter.
"""

import base64
import io
import json
import os
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

Notebook = dict[str, Any]


def run(notebook: Notebook) -> Notebook:
    """The notebook with the outputs of a run of its cells in the current folder."""
    import matplotlib.pyplot as plt

    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            outputs: list[Any] = []
            printed = io.StringIO()

            def show(outputs: list[Any] = outputs) -> None:
                outputs.append(drawn(plt.gcf()))
                plt.close("all")

            code = compile("".join(cell["source"]), "notebook", "exec")
            with mock.patch.object(plt, "show", show), redirect_stdout(printed):
                exec(code, namespace)
            if text := printed.getvalue():
                lines = text.splitlines(keepends=True)
                stream = {"output_type": "stream", "name": "stdout", "text": lines}
                outputs.insert(0, stream)
            cell = {**cell, "outputs": outputs, "execution_count": None}
        cells.append(cell)
    return {**notebook, "cells": cells}


def drawn(figure: Any) -> dict[str, Any]:
    """A figure as an output of a cell."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=72, metadata={"Software": None})
    data = {"image/png": base64.b64encode(buffer.getvalue()).decode()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def printed(cell: dict[str, Any]) -> str:
    """What a cell of a notebook has printed."""
    streams = [each for each in cell["outputs"] if each["output_type"] == "stream"]
    return "".join(line for each in streams for line in each["text"])


def as_page(notebook: Notebook, name: str) -> tuple[str, dict[str, bytes]]:
    """The notebook in Markdown, and its pictures by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        if text := printed(cell):
            parts.append(f"```text\n{text.rstrip()}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "display_data":
                picture = f"{name}_{len(pictures)}.png"
                pictures[picture] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![figure]({picture})")
    return "\n\n".join(parts) + "\n", pictures


def main(paths: list[str]) -> None:
    """Runs notebooks, and writes them with their outputs."""
    os.environ.setdefault("MPLBACKEND", "agg")
    for path in map(Path, paths):
        notebook = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            done = run(notebook)
        text = json.dumps(done, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
