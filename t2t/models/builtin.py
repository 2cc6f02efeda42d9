"""The built-in model, which is part of the package."""

from importlib import resources
from pathlib import Path

from t2t.errors import UserError

NAME = "builtin"
"""Its name, given instead of a path of weights."""
FOLDER = Path(str(resources.files("t2t"))) / "builtin"
CARD = "MODEL_CARD.md"


def builtin_file() -> Path:
    """The file of weights inside the package."""
    files = sorted(FOLDER.glob("*.safetensors"))
    if not files:
        raise UserError(
            "This build of t2t contains no model: name weights or a run folder; `t2t "
            "train` makes one."
        )
    return files[0]
