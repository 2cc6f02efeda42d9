"""Which columns of a parquet file hold the images and their labels."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t2t.errors import UserError

_IMAGE_NAMES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes")
_BINARY = ("binary", "large_binary", "binary_view")
_KINDS = {
    "bytes": (*_BINARY, "null"),
    "path": (*_BINARY, "null", "string", "large_string", "string_view"),
}
_LABEL_NAMES = ("label", "labels", "fine_label", "class", "cls", "target")


@dataclass(frozen=True)
class ParquetColumns:
    """Which columns hold images and labels, and the classes if the schema says."""

    image: str
    label: str | None
    classes: tuple[str, ...] | None


def columns_of(schema: Any, path: str, labels: bool) -> ParquetColumns:
    """The image and label columns, by the Hugging Face metadata or else by name.

    Without `labels`, a file may have no label column.
    """
    features: dict[str, Any] = {}
    if b"huggingface" in (schema.metadata or {}):
        try:
            info = json.loads(schema.metadata[b"huggingface"])
            features = dict(info.get("info", {}).get("features") or {})
        except (ValueError, AttributeError, TypeError) as error:
            raise UserError(
                f"{path} has damaged Hugging Face metadata ({error}): copy it again."
            ) from error
    kinds = {
        name: feature.get("_type")
        for name, feature in features.items()
        if isinstance(feature, dict) and name in schema.names
    }
    images = [name for name, kind in kinds.items() if kind == "Image"]
    numbered = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    image = _first(_IMAGE_NAMES, images) or _first(_IMAGE_NAMES, schema.names, False)
    label = _first(_LABEL_NAMES, numbered) or _first(_LABEL_NAMES, schema.names, False)
    for wanted, found, names in (
        ("image", image, _IMAGE_NAMES),
        ("label", label, _LABEL_NAMES),
    ):
        if not labels and wanted == "label":
            continue
        if (num := schema.names.count(found)) != 1:
            raise UserError(
                f"{path} has the columns {', '.join(schema.names)} and "
                f"{'several are' if num else 'none is'} the {wanted}: call one "
                f"{' or '.join(names[:2])}."
            )
    assert image is not None
    _check_image_type(schema.field(image), path)
    if label is None or schema.names.count(label) != 1:
        return ParquetColumns(image, None, None)
    classes = (features[label].get("names") if label in kinds else None) or []
    if not isinstance(classes, list) or any(type(name) is not str for name in classes):
        raise UserError(
            f"{path} names its classes {classes!s:.60}: it should be a list of strings."
        )
    return ParquetColumns(image, label, tuple(classes) or None)


def _check_image_type(field: Any, path: str) -> None:
    """Refuses a column of anything but image files or their paths."""
    kind = field.type
    parts = [kind.field(number) for number in range(kind.num_fields)]
    right = [
        str(part.type) in _KINDS[part.name] for part in parts if part.name in _KINDS
    ]
    if not parts:  # repeated bytes may be stored as a dictionary
        right = [str(getattr(kind, "value_type", kind)) in _BINARY]
    if right and all(right):
        return
    raise UserError(
        f"{path} has {kind!s:.60} in its column {field.name!r}: it should hold the "
        "bytes of image files, or bytes and path as Hugging Face writes them."
    )


def _first(
    wanted: Sequence[str], there: Sequence[str], or_any: bool = True
) -> str | None:
    for name in wanted:
        if name in there:
            return name
    return there[0] if or_any and there else None
