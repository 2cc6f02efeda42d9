"""The options of an export."""

from dataclasses import dataclass

from t2t.errors import UserError, choose, suggest

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
OTHER_LICENSE = "other"
_LICENSES = """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
    bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause
    bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0
    cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0
    cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
    creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0
    h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1
    llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1
    openmdw-1.0 openrail openrail++ osl-3.0 pddl postgresql unlicense wtfpl zlib
"""
LICENSES = (NO_LICENSE, OTHER_LICENSE, *_LICENSES.split())
"""The hub's names; it refuses a model card with any other."""


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
        if self.license not in LICENSES:
            raise UserError(
                f"license={self.license!r} is not a name that the hub knows: give one "
                "such as apache-2.0 or mit, or other, and name the license in the "
                f"model card.{suggest(self.license, LICENSES)}"
            )
        if self.val_images < 1:
            raise UserError(f"val_images={self.val_images} must be 1 or more.")
