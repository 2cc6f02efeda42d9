"""The machine, the versions and the command of a run: `environment.json`."""

import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import t2t
from t2t.training.distributed import World
from t2t.training.run_files import ENVIRONMENT, read_json

TYPES = dict.fromkeys(("device", "torch", "precision"), str)
"""Values that are read from the file, and their types."""


def environment(settings: dict[str, Any], world: World) -> dict[str, Any]:
    """The content of the file, given the settings of the runtime."""
    device = world.device.type
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor()
    return {
        "command": command_line(),
        "t2t": t2t.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": f"{device} {name}".strip(),
        "num_processes": world.size,
        **settings,
    }


def read_environment(folder: Path) -> dict[str, Any]:
    """The machine and the versions that a run was trained with."""
    return read_json(folder / ENVIRONMENT, TYPES)


def command_line() -> str:
    """The command that was typed, quoted for a shell."""
    return shlex.join(["t2t", *sys.argv[1:]])
