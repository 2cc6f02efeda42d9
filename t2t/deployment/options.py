"""The options of an export."""

import re
from dataclasses import dataclass

from t2t.errors import UserError, choose

SUFFIXES = {
    "onnx": ".onnx",
    "torch-export": ".pt2",
    "safetensors": ".safetensors",
    "timm": "",
}
"""The formats, and the suffixes of their files; timm's is a folder."""
FOLDER_SUFFIX = "-timm"
"""The end of the default name of a folder."""
GRAPHS = ("onnx", "torch-export")
VAL_IMAGES = 1000
NO_LICENSE = "unknown"


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export."""

    to: str
    dynamic_image_size: bool = False
    with_preprocessing: bool = False
    int8: bool = False
    val_images: int = VAL_IMAGES
    license: str = NO_LICENSE

    def __post_init__(self) -> None:
        """Raises an error for options that the format does not have."""
        choose("to", self.to, SUFFIXES)
        if self.int8 and self.to != "onnx":
            raise UserError(f"int8 is for onnx, not for {self.to}; leave it out.")
        for name in ("dynamic_image_size", "with_preprocessing"):
            if getattr(self, name) and self.to not in GRAPHS:
                raise UserError(
                    f"{name.replace('_', '-')} is for onnx and torch-export; a "
                    f"{self.to} export holds weights, which take any image size and "
                    "have no preprocessing."
                )
        if self.license != NO_LICENSE and self.to != "timm":
            raise UserError(
                f"license is for the card of a timm folder, not for {self.to}; leave "
                "it out."
            )
        if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", self.license):
            raise UserError(
                f"license={self.license!r} is not a name that the hub knows: give one "
                "such as apache-2.0, mit, cc-by-4.0 or other, in lower case."
            )
        if self.val_images < 1:
            raise UserError(f"val_images={self.val_images} must be 1 or more.")
