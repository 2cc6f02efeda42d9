"""Reads files of weights without running code in them."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from t2t.errors import UserError, first_line
from t2t.models.builtin import NAME as BUILTIN
from t2t.models.checkpoint_io.checksum import check_checksum
from t2t.models.checkpoint_io.description import Description
from t2t.models.checkpoint_io.pickles import Unused, read_pickle
from t2t.models.checkpoint_io.published import StateDict
from t2t.models.checkpoint_io.resolve import resolve_file

EMA_KEYS = ("state_dict_ema", "model_ema", "ema_state_dict", "params_ema", "ema")
RAW_KEYS = ("state_dict", "model", "net", "model_state_dict", "model_state", "params")
WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that DistributedDataParallel and torch.compile add to names."""
SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".safetensors", ".tar")
EXPORTED = (".onnx", ".pt2")
"""Suffixes of graphs that `t2t export` writes."""
PLAIN = (int, float, str, bytes, bool, type(None), Unused)
"""Types of other values in a state dict, such as the epoch or the accuracy."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors and the description in a file."""

    origin: str
    """The path as the user gave it."""
    tensors: StateDict
    weights: str
    """The key of the weights in the file, such as state_dict_ema."""
    description: Description | None = None
    hint: str = ""
    """Text that may name the model: the checkpoint's `arch` and the file name."""


def read_checkpoint(path: str | os.PathLike[str], *, ema: bool = True) -> Checkpoint:
    """The weights at a path, URL, hub name or of a timm model, by its name.

    EMA weights come first if `ema`.
    """
    origin = str(path)
    if may_be_timm(origin):
        from t2t.models.checkpoint_io.timm_pretrained import read_timm

        return read_timm(origin)
    file = resolve_file(path)
    if file.suffix.lower() in EXPORTED:
        raise UserError(
            f"{origin} is an exported graph, without weights that t2t can load: give "
            "the weights that it was exported from (`t2t predict` also runs .onnx)."
        )
    try:
        with file.open("rb") as stream:
            start = stream.read(9)
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}); check its permissions."
        ) from error
    if not start:
        raise UserError(f"{file_named(origin, file)} is empty.")
    # A safetensors file starts with the length of its header and the header's brace.
    if start[8:] == b"{" or file.suffix == ".safetensors":
        checkpoint = read_safetensors(file, origin)
    elif start[:1] in b"<{#" or start.startswith(b"version h"):
        raise UserError(
            f"{origin} is text, not weights: perhaps a web page or a pointer that was "
            "downloaded instead of the file."
        )
    else:
        content = read_pickle(file, origin)
        weights, tensors = pick_weights(content, ema, origin)
        arch = content.get("arch")
        hint = hint_of(origin, file, arch if isinstance(arch, str) else "")
        checkpoint = Checkpoint(origin, tensors, weights, hint=hint)
    check_tensors(checkpoint.tensors, origin, file.stat().st_size)
    if checkpoint.description is None and origin.startswith("hf-hub:"):
        from t2t.models.checkpoint_io.timm_pretrained import description_on_hub

        described = description_on_hub(origin, file, checkpoint.tensors)
        return replace(checkpoint, description=described)
    return checkpoint


def may_be_timm(origin: str) -> bool:
    """Whether a text may be a model's name: no file, folder or address."""
    is_word = re.fullmatch(r"\w+(\.\w+)?", origin) is not None
    is_file = origin.endswith(SUFFIXES) or os.path.exists(origin)
    return is_word and origin != BUILTIN and not is_file


def read_safetensors(file: Path, origin: str) -> Checkpoint:
    """The tensors and the description in a safetensors file."""
    try:
        with safe_open(file, framework="pt") as content:
            metadata = content.metadata() or {}
            check_checksum(file, metadata, origin)
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except UserError:
        raise
    # A damaged header can have any type and any shape, and raise any error.
    except Exception as error:
        raise UserError(
            f"{file_named(origin, file)} is damaged or cut off ({first_line(error)}); "
            "download or copy it again."
        ) from error
    text = metadata.get("t2t")
    description = None if text is None else Description.from_json(text, origin)
    return Checkpoint(
        origin,
        strip_wrappers(tensors),
        "weights",
        description,
        hint=hint_of(origin, file),
    )


def file_named(origin: str, file: Path) -> str:
    """The file in a folder that the user gave, or else what the user gave."""
    return str(file) if os.path.isdir(os.path.expanduser(origin)) else origin


def hint_of(origin: str, file: Path, arch: str = "") -> str:
    """Text that may name the model: `arch`, the folder or repository, the file name."""
    return " ".join(dict.fromkeys([arch, Path(origin).name, file.name]))


def pick_weights(
    content: Mapping[Any, Any], ema: bool, origin: str
) -> tuple[str, StateDict]:
    """The EMA or the raw weights of a checkpoint, and which key they are under."""
    present = [
        key for key in (*EMA_KEYS, *RAW_KEYS) if isinstance(content.get(key), dict)
    ]
    if not ema:
        raw = [key for key in present if key in RAW_KEYS]
        if present and not raw:
            raise UserError(
                f"{origin} holds EMA weights only ({present[0]}); load it with "
                "ema=True."
            )
        present = raw
    if not present:  # under another key, if only one can be meant
        named = [key for key, value in content.items() if is_state(value)]
        present = named if len(named) == 1 else []
    key = present[0] if present else ""
    tensors = content[key] if present else content
    if not is_state(tensors):
        raise UserError(
            f"{origin} holds no weights: expected tensors by name, alone or under one "
            f"key such as {', '.join(RAW_KEYS[:3])} or {EMA_KEYS[0]}; found "
            f"{', '.join(map(describe_key, list(tensors)[:5])) or 'nothing'}."
        )
    kept = {name: value for name, value in tensors.items() if isinstance(value, Tensor)}
    return str(key) or "weights", strip_wrappers(kept)


def is_state(value: Any) -> bool:
    """Whether this is a state dict: tensors by name, and plain values at most."""
    return (
        isinstance(value, Mapping)
        and all(isinstance(name, str) for name in value)
        and any(isinstance(each, Tensor) for each in value.values())
        and all(isinstance(each, (Tensor, *PLAIN)) for each in value.values())
    )


def describe_key(key: Any) -> str:
    """A key of a checkpoint for a message, with its type if it is not a string."""
    return key if isinstance(key, str) else f"the {type(key).__name__} {key!r:.20}"


def strip_wrappers(tensors: Mapping[str, Tensor]) -> StateDict:
    """Removes the prefixes of wrappers, and `model.` or `net.` if all names have it."""
    state = {
        re.sub(rf"^(?:{'|'.join(map(re.escape, WRAPPERS))})+", "", name): tensor
        for name, tensor in tensors.items()
    }
    for front in ("model.", "net."):
        if all(name.startswith(front) for name in state):
            state = {name.removeprefix(front): each for name, each in state.items()}
    return state


def check_tensors(tensors: StateDict, origin: str, num_bytes: int) -> None:
    """Raises an error for tensors that are not dense and real, or exceed the file."""
    for name, tensor in tensors.items():
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not is_plain or tensor.is_complex() or tensor.is_quantized:
            raise UserError(
                f"{origin} holds {name} as {tensor.dtype} of layout {tensor.layout} on "
                f"{tensor.device}; weights must be dense real tensors."
            )
        # With a stride of 0, one number stands for many.
        if tensor.numel() * tensor.element_size() > num_bytes:
            raise UserError(
                f"{origin} is damaged: {name} {tuple(tensor.shape)} has more numbers "
                "than the file holds."
            )


def non_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return [name for name, tensor in tensors.items() if not is_finite(tensor)]


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor has no NaN or infinity."""
    if not tensor.is_floating_point():
        return True
    if tensor.element_size() == 1:  # float8 has no sum
        tensor = tensor.float()
    # A finite sum proves it, is fast, and takes no memory.
    return bool(tensor.sum(dtype=torch.float64).isfinite()) or bool(
        tensor.isfinite().all()
    )
