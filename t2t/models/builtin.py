"""The model that ships with the package."""

from importlib import resources
from pathlib import Path

from t2t.errors import UserError

NAME = "builtin"
"""What stands for it wherever weights are named."""
FOLDER = Path(str(resources.files("t2t"))) / "builtin"
CARD = "MODEL_CARD.md"


def builtin_file() -> Path:
    """The file of weights inside the package."""
    files = sorted(FOLDER.glob("*.safetensors"))
    if not files:
        raise UserError(
            "No model ships in this build of t2t: name weights or a run folder; "
            "`t2t train` makes one."
        )
    return files[0]
