"""Rows of a script, kept as JSON with what they were measured on and by."""

import json
import sys
from pathlib import Path
from typing import Any

import torch


def keep_rows(path: Path | None, rows: list[dict[str, Any]]) -> None:
    """Writes all rows so far, where a path is given."""
    if path is None:
        return
    on_gpu = torch.cuda.is_initialized()
    told = {
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "torch": torch.__version__,
        "command": " ".join(["python", *sys.argv]),
        "rows": rows,
    }
    path.write_text(json.dumps(told, indent=1) + "\n")
