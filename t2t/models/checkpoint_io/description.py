"""The description of a model in our files, checked before the model is built."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from t2t.config import convert, from_json
from t2t.errors import UserError, require
from t2t.models.config import ModelConfig, check_image_size

LONGEST_NAME = 200
"""Characters of a model's name; a longer name means damage."""
OF_IMAGES: dict[str, Any] = {
    "image_size": tuple[int, int],
    "channels": int,
    "mean": tuple[float, ...],
    "std": tuple[float, ...],
    "crop_fraction": float,
}
OF_TRAINING: dict[str, Any] = {
    "data": str | None,
    "seed": int,
    "evaluated_on": str | None,
}


@dataclass(frozen=True, kw_only=True)
class Description:
    """How to build the model in a file, its class names and its preprocessing."""

    config: ModelConfig | None = None
    """None for a network that timm builds, by its name and settings."""
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks types and values."""
        convert(self.name, str, "name")
        convert(self.settings, dict[str, Any], "settings")
        convert(self.extra, dict[str, Any], "extra")
        if len(self.name) > LONGEST_NAME:
            raise UserError(f"The name {self.name[:20]}… is too long.")
        for name in self.class_names:
            if not isinstance(name, str):
                raise UserError(
                    f"class_names must be strings, not {name!r}; use str(name)."
                )
        check_extra(self.extra)

    def to_json(self) -> str:
        """All of it as one line of JSON."""
        try:
            return json.dumps(asdict(self))
        except (TypeError, ValueError) as error:
            raise UserError(f"extra cannot be saved as JSON: {error}.") from error

    @classmethod
    def from_json(cls, text: str, origin: str) -> Self:
        """The inverse of `to_json`."""
        try:
            values = json.loads(text)
            convert(values, dict[str, Any], "The description")
            config = values["config"]
            known = {item.name for item in fields(ModelConfig)}
            unknown = sorted({*values} - {item.name for item in fields(cls)})
            if config is not None:
                convert(config, dict[str, Any], "config")
                unknown += sorted({*config} - known)
            if not unknown:
                values["config"] = config and from_json(ModelConfig, config)
                names = values.get("class_names", [])
                if not isinstance(names, list):
                    raise UserError(
                        f"class_names={json.dumps(names)[:40]} is not a list"
                    )
                return cls(**{**values, "class_names": tuple(names)})
        # Deep nesting raises a RecursionError, a long number a ValueError.
        except (KeyError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            if isinstance(error, KeyError):
                reason = f"it has no {error}"
            raise UserError(
                f"{origin} has a damaged description of its model ({reason}); download "
                "or copy it again."
            ) from error
        raise UserError(
            f"{origin} has model options that this version does not know "
            f"({', '.join(unknown)}); update t2t."
        )


def check_extra(extra: Mapping[str, Any]) -> None:
    """Checks the preprocessing settings; unknown keys may have any value.

    Lists, as JSON has them, and tuples are both accepted.
    """
    known = {
        key: convert(extra[key], hint, key)
        for key, hint in {**OF_IMAGES, **OF_TRAINING}.items()
        if key in extra
    }
    for key in ("image_size", "mean", "std"):
        if key in known and not isinstance(extra[key], list | tuple):
            raise UserError(f"{key}={extra[key]} must be a list of numbers.")
    if "image_size" in known:
        check_image_size(known["image_size"])
    if "channels" in known:
        require("channels", known["channels"], 1)
    if "crop_fraction" in known:
        require("crop_fraction", known["crop_fraction"], 0.01, 1)
    for value in known.get("mean", ()):
        require("mean", abs(value), 0)
    for value in known.get("std", ()):
        if value <= 0:
            raise UserError(f"std={value} must be above 0.")
        require("std", value, 0)
