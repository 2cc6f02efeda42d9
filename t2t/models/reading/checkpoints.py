"""Files of weights: what is in them, and nothing they could run."""

import argparse
import json
import os
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.reading.locating import locate
from t2t.models.reading.published import State

AVERAGED = ("state_dict_ema", "model_ema")
RAW = ("state_dict", "model")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a file of ours says of its model."""

    config: ModelConfig | None = None
    """None for a network that timm builds, by its name and settings."""
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """All of it as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, origin: str) -> Self:
        """What `to_json` wrote."""
        try:
            values = json.loads(text)
            config = values.pop("config")
            if config is not None:
                known = {item.name for item in fields(ModelConfig)}
                if unknown := sorted(config.keys() - known):
                    raise UserError(
                        f"{origin} has model options that this version does not know "
                        f"({', '.join(unknown)}); update t2t."
                    )
                config = ModelConfig(**{k: as_tuple(v) for k, v in config.items()})
            values["class_names"] = tuple(values["class_names"])
            return cls(config=config, **values)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise UserError(
                f"{origin} has a damaged description of its model ({error}); get it "
                "again."
            ) from error


def as_tuple(value: Any) -> Any:
    """JSON has lists where a config has tuples."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one file, and what it says of them."""

    origin: str
    """The path as the user gave it."""
    tensors: State
    weights: str
    """Which of the file's weights these are."""
    description: Description | None = None
    hint: str = ""
    """What names the model, if nothing better does: the checkpoint or the file."""


def read(path: str | os.PathLike[str], *, averaged: bool = True) -> Checkpoint:
    """The weights at a path, URL or hub name; of two kinds, the averaged or the raw."""
    origin = str(path)
    file = locate(path)
    with file.open("rb") as stream:
        start = stream.read(9)
    if not start:
        raise UserError(f"{origin} is empty.")
    # A safetensors file starts with the length of its header and the header's brace.
    if start[8:] == b"{" or file.suffix == ".safetensors":
        return read_safetensors(file, origin)
    if start[:1] in b"<{#" or start.startswith(b"version h"):
        raise UserError(
            f"{origin} is text, not weights: perhaps a web page or a pointer that was "
            "downloaded in place of the file."
        )
    content = read_pickle(file, origin)
    weights, tensors = pick_weights(content, averaged, origin)
    hint = " ".join([str(content.get("arch", "")), file.name])
    return Checkpoint(origin, tensors, weights, hint=hint)


def read_safetensors(file: Path, origin: str) -> Checkpoint:
    """The tensors and the description in a safetensors file."""
    try:
        with safe_open(file, framework="pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            metadata = content.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{origin} is damaged or cut off ({error}); get it again."
        ) from error
    text = metadata.get("t2t")
    description = None if text is None else Description.from_json(text, origin)
    return Checkpoint(
        origin, strip_wrappers(tensors), "weights", description, hint=file.name
    )


def read_pickle(file: Path, origin: str) -> dict[str, Any]:
    """The content of a PyTorch file; only tensors and plain values are read."""
    try:
        # Published checkpoints hold their command line's options; a Namespace is data.
        with (
            torch.serialization.safe_globals([argparse.Namespace]),
            warnings.catch_warnings(),
        ):
            # That an odd pickle may be refused is told by refusing it.
            warnings.simplefilter("ignore")
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (LookupError, TypeError, AttributeError) as error:
        # Text and other bytes that only look like a pickle at first.
        raise UserError(
            f"{origin} is not a file of weights, or is damaged: its bytes make no "
            "sense as a PyTorch file."
        ) from error
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        # What comes before is advice to load without the safety.
        reason = str(error).rpartition("WeightsUnpickler error:")[2].strip()
        if asked := re.search(r"GLOBAL (\S+)|function (\S+)|class (\S+)", reason):
            raise UserError(
                f"{origin} was not loaded: it asks for {asked[asked.lastindex or 0]}, "
                "which is code and not weights. Only tensors and plain values are read."
            ) from error
        raise UserError(
            f"{origin} is not a file of weights, or is damaged or cut off "
            f"({(reason.splitlines() or ['it ends early'])[0]})."
        ) from error
    if not isinstance(content, dict):
        raise UserError(
            f"{origin} holds a {type(content).__name__}, not weights by name."
        )
    return content


def pick_weights(
    content: Mapping[str, Any], averaged: bool, origin: str
) -> tuple[str, State]:
    """The averaged or the raw weights of a checkpoint, and which key they are under."""
    present = [key for key in (*AVERAGED, *RAW) if isinstance(content.get(key), dict)]
    if not averaged:
        raw = [key for key in present if key in RAW]
        if present and not raw:
            raise UserError(
                f"{origin} holds averaged weights only ({present[0]}); load it with "
                "averaged=True."
            )
        present = raw
    key = present[0] if present else ""
    tensors = content[key] if key else content
    if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(
            f"{origin} holds no weights: expected tensors by name, alone or as one of "
            f"{', '.join((*AVERAGED, *RAW))}; found "
            f"{', '.join(map(str, list(tensors)[:5])) or 'nothing'}."
        )
    return key or "weights", strip_wrappers(tensors)


def strip_wrappers(tensors: Mapping[str, Tensor]) -> State:
    """Names without what DistributedDataParallel and torch.compile put before them."""
    return {
        re.sub(r"^(?:module\.|_orig_mod\.)+", "", name): tensor
        for name, tensor in tensors.items()
    }


def sort_metadata(file: Path) -> None:
    """Puts what a safetensors file says of itself in order.

    It is written in an order that changes from one process to the next, and the same
    weights should be the same file.
    """
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= size  # the tensors begin behind it
        stream.seek(8)
        stream.write(text.ljust(size))
