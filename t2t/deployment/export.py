"""`t2t.export`: writes a trained model for other programs, checked on real images."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import t2t
from t2t.deployment import onnx_file, torch_export_file
from t2t.deployment.accuracy import top1_of
from t2t.deployment.check_images import (
    CheckImages,
    LabelledImages,
    find_check_images,
    find_labelled,
    images_in,
)
from t2t.deployment.graph import ExportedGraph
from t2t.deployment.parity import Parity, agreement, check_parity
from t2t.errors import UserError, choose, first_line
from t2t.models.config import ModelConfig, Size
from t2t.models.create import as_size
from t2t.models.trained import TrainedModel, load_trained
from t2t.models.weights import load, save
from t2t.serving.export_metadata import ExportMetadata

SUFFIXES = {
    "onnx": ".onnx",
    "torch-export": ".pt2",
    "safetensors": ".safetensors",
    "timm": "",
}
"""The formats, and the suffixes of their files; timm's is a folder."""
GRAPHS = ("onnx", "torch-export")
EVAL_IMAGES = 1000
MOST_LOST = 2.0
"""Points of accuracy that int8 may cost."""
LEAST_AGREEMENT = 75.0
"""Without labels: per cent of images that int8 must give the same class."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how it was checked."""

    path: Path
    to: str
    metadata: ExportMetadata
    parity: Parity
    accuracy: str = ""
    """Measured accuracy, or why there is none; empty if it was not asked for."""
    notes: tuple[str, ...] = ()

    @property
    def megabytes(self) -> float:
        """The size of the file, of all files of a folder."""
        several = [self.path, self.path.with_name(f"{self.path.name}.data")]
        if self.path.is_dir():
            several = [*self.path.iterdir()]
        return sum(file.stat().st_size for file in several if file.is_file()) / 1e6


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export."""

    to: str
    dynamic_image_size: bool = False
    with_preprocessing: bool = False
    int8: bool = False
    eval_images: int = EVAL_IMAGES
    license: str = "unknown"

    def __post_init__(self) -> None:
        """Raises an error for options that the format does not have."""
        choose("to", self.to, SUFFIXES)
        if self.int8 and self.to != "onnx":
            raise UserError(f"int8 is for to='onnx', not to={self.to!r}; leave it out.")
        for name in ("dynamic_image_size", "with_preprocessing"):
            if getattr(self, name) and self.to not in GRAPHS:
                raise UserError(
                    f"{name} is for to='onnx' and to='torch-export'; a "
                    f"{self.to} export holds weights, which take any image size and "
                    "have no preprocessing."
                )
        if self.eval_images < 1:
            raise UserError(f"eval_images={self.eval_images} must be 1 or more.")


def export(
    weights: str | os.PathLike[str],
    *,
    to: str,
    out: str | os.PathLike[str] | None = None,
    images: Sequence[Any] = (),
    data: str | None = None,
    model: str | ModelConfig | None = None,
    image_size: int | Size | None = None,
    progress: Progress = lambda done, total: None,
    **options: Any,
) -> ExportReport:
    """Exports weights to ONNX, torch.export, safetensors or a timm folder.

    The file is compared with PyTorch on `images`, or on validation images of the model
    or of `data`; if it differs, nothing is written. Options: `dynamic_image_size`,
    `with_preprocessing`, `int8`, `eval_images`, `license`.
    """
    chosen = ExportOptions(to=to, **options)
    if to == "onnx":
        onnx_file.check_packages()
    trained = load_trained(weights, model=model)
    notes = trained.notes
    if image_size is not None:
        trained = at_size(trained, as_size(image_size), weights, model)
    target = target_of(trained, chosen, weights, out)
    labelled = find_labelled(trained, data, chosen.eval_images)
    words = [each for each in images if isinstance(each, str)]
    found = images_in(words) if len(words) == len(images) else list(images)
    other = other_size(trained.image_size) if chosen.dynamic_image_size else None
    checked = find_check_images(trained, found, labelled, other)
    export_one = Export(trained, chosen, checked, labelled, progress)
    with unfinished(target) as part:
        report = export_one.write(part)
        publish(part, target)
    return replace(report, path=target, notes=notes)


@dataclass(frozen=True)
class Export:
    """One export: the model, the options and the images to check it on."""

    trained: TrainedModel
    options: ExportOptions
    checked: CheckImages
    labelled: LabelledImages | None
    progress: Progress

    def write(self, part: Path) -> ExportReport:
        """Writes and checks a file or folder."""
        if self.options.to == "timm":
            return self.write_folder(part)
        if self.options.to == "safetensors":
            return self.write_weights(part)
        return self.write_graph(part)

    def write_graph(self, part: Path) -> ExportReport:
        """An ONNX or torch.export file."""
        trained, options = self.trained, self.options
        graph = ExportedGraph(
            trained,
            with_preprocessing=options.with_preprocessing,
            multi_label=is_multi_label(trained),
        )
        metadata = metadata_of(trained, options, graph.output)
        if options.to == "onnx":
            onnx_file.write_onnx(graph, part, metadata, trained.image_size)
            runner: Any = onnx_file.OnnxRunner(part, graph)
        else:
            torch_export_file.write_torch_export(
                graph, part, metadata, trained.image_size
            )
            runner = torch_export_file.TorchExportRunner(part, graph)
        what = f"{trained.name} as {'ONNX' if options.to == 'onnx' else 'torch.export'}"
        parity = check_parity(what, runner, graph.outputs_for, self.checked)
        metadata = replace(metadata, parity=str(parity))
        accuracy = ""
        if options.int8:
            whole = part.with_name(f"float32.{part.name}")
            part.rename(whole)
            metadata = onnx_file.quantize(whole, part, metadata)
            accuracy = self.judge_int8(runner, onnx_file.OnnxRunner(part, graph))
            metadata = replace(metadata, accuracy=accuracy)
            whole.unlink()
        if options.to == "onnx":
            onnx_file.rewrite_metadata(part, metadata)
        return ExportReport(part, options.to, metadata, parity, accuracy)

    def judge_int8(self, float32: Any, int8: Any) -> str:
        """The accuracy of int8 beside float32; an error if too much is lost."""
        if self.labelled is None:
            images = torch.cat([self.checked.batches[0]])
            one, other = (torch.from_numpy(run(images)) for run in (float32, int8))
            same = agreement(one, other)
            if same < LEAST_AGREEMENT:
                raise UserError(
                    f"int8 gives the class of float32 for {same:.0f} % of "
                    f"{self.checked.origin}, and {LEAST_AGREEMENT:g} % are needed: "
                    "export it without int8."
                )
            return (
                "The accuracy of int8 is not measured: there are no labelled images "
                f"(--data names some). It gives the class of float32 for {same:.0f} % "
                f"of {self.checked.origin}."
            )
        both = {"float32": float32, "int8": int8}
        top1 = top1_of(both, self.trained, self.labelled, self.progress)
        lost = top1["float32"] - top1["int8"]
        beside = (
            f"top-1 {top1['int8']:.2f} % in int8 and {top1['float32']:.2f} % in "
            f"float32 on {self.labelled.where}"
        )
        if lost > MOST_LOST:
            raise UserError(
                f"int8 loses too much: {beside}, and {MOST_LOST:g} points are allowed; "
                "export it without int8."
            )
        return beside[0].upper() + beside[1:] + "."

    def write_weights(self, part: Path) -> ExportReport:
        """A safetensors file with description and preprocessing."""
        parity = write_and_compare(self.trained, part, self.checked)
        metadata = metadata_of(self.trained, self.options, "logits")
        return ExportReport(part, "safetensors", metadata, parity)

    def write_folder(self, part: Path) -> ExportReport:
        """A folder for timm and the hub."""
        from t2t.deployment.timm_folder import write_timm_folder

        return write_timm_folder(self, part)


def write_and_compare(trained: TrainedModel, file: Path, images: CheckImages) -> Parity:
    """Saves the weights with all that describes them, and loads them again."""
    save(
        trained.model,
        file,
        name=trained.name,
        class_names=trained.class_names,
        extra=extra_of(trained),
    )
    again = load(file).float()
    graph = ExportedGraph(trained, with_preprocessing=False, multi_label=False)

    @torch.inference_mode()
    def run(pixels: Tensor) -> np.ndarray:
        logits: Tensor = again(graph.inputs_for(pixels))
        return logits.numpy()

    return check_parity(f"{trained.name}", run, graph.outputs_for, images)


def extra_of(trained: TrainedModel) -> dict[str, Any]:
    """The preprocessing and the origin, as our files have them."""
    return {
        "image_size": list(trained.image_size),
        "channels": trained.channels,
        "mean": list(trained.mean),
        "std": list(trained.std),
        "crop_fraction": trained.crop_fraction,
        "data": trained.data,
        "seed": trained.seed,
        "evaluated_on": trained.evaluated_on,
    }


def metadata_of(
    trained: TrainedModel, options: ExportOptions, output: str
) -> ExportMetadata:
    """What the file says of itself."""
    readable = trained.readable_names
    return ExportMetadata(
        model=trained.name,
        class_names=trained.class_names,
        readable_names=() if readable == trained.class_names else readable,
        image_size=trained.image_size,
        channels=trained.channels,
        mean=trained.mean,
        std=trained.std,
        crop_fraction=trained.crop_fraction,
        multi_label=is_multi_label(trained),
        input="uint8" if options.with_preprocessing else "normalised",
        output=output,
        dynamic_image_size=options.dynamic_image_size,
        data=trained.data,
        t2t_version=t2t.__version__,
    )


def is_multi_label(trained: TrainedModel) -> bool:
    """Whether an image may have several classes."""
    return bool(getattr(trained, "multi_label", False))


def at_size(
    trained: TrainedModel, size: Size, weights: Any, model: str | ModelConfig | None
) -> TrainedModel:
    """The same weights for another image size, with positions interpolated."""
    network = load(weights, model=model, image_size=size)
    return replace(trained, model=network, image_size=size)


def other_size(size: Size) -> Size:
    """A larger and not square size, on which a graph for any size is checked too."""
    height, width = size
    return height + max(height // 2, 16), width + max(width // 4, 8)


def target_of(
    trained: TrainedModel,
    options: ExportOptions,
    weights: str | os.PathLike[str],
    out: str | os.PathLike[str] | None,
) -> Path:
    """Where to write; by default a file in this folder, named like the weights."""
    suffix = SUFFIXES[options.to]
    if out is None:
        given = Path(str(weights)).expanduser()
        stem = given.stem if given.is_file() else given.name
        is_path = given.exists() and stem != "model"
        target = Path((stem if is_path else trained.name) + (suffix or "-timm"))
    else:
        target = Path(out).expanduser()
    if suffix and target.suffix != suffix:
        raise UserError(f"out={str(out)!r} must end in {suffix} for to={options.to!r}.")
    if not target.parent.is_dir():
        raise UserError(
            f"{target} cannot be written: there is no folder {target.parent}; create "
            "it, or name another file."
        )
    if suffix and target.is_dir():
        raise UserError(f"{target} is a folder: name a file that ends in {suffix}.")
    source = Path(str(weights)).expanduser()
    if target.exists() and source.exists():
        files = [source, *(source.glob("*.safetensors") if source.is_dir() else ())]
        if any(target.samefile(each) for each in files):
            raise UserError(
                f"{target} is the file of weights itself: give --out another name."
            )
    if not suffix:
        check_folder(target)
    return target


def check_folder(target: Path) -> None:
    """Raises an error rather than replace a folder that is not an earlier export."""
    from t2t.deployment.timm_folder import FILES

    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target} is a file: name a new folder.")
    others = {path.name for path in target.iterdir()} - set(FILES)
    if others:
        raise UserError(
            f"{target} holds something other than an earlier export "
            f"({', '.join(sorted(others)[:3])}): name a new folder."
        )


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A path of the same name in a temporary folder beside it, removed afterwards."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UserError(f"{target} cannot be written ({first_line(error)}).") from error
    try:
        yield folder / target.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(part: Path, target: Path) -> None:
    """Moves what was written to its place."""
    beside = part.with_name(f"{part.name}.data")
    if beside.exists():
        beside.replace(target.with_name(beside.name))
    if part.is_dir():
        target.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(target / file.name)
    else:
        part.replace(target)
