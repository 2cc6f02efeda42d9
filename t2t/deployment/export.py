"""`t2t.export`: writes a trained model for other programs, checked on real images."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import t2t
from t2t.deployment import onnx_file, torch_export_file
from t2t.deployment.accuracy import Runner
from t2t.deployment.check_images import (
    CheckImages,
    LabelledImages,
    find_check_images,
    find_labelled,
    images_in,
)
from t2t.deployment.graph import ExportedGraph, check_any_size
from t2t.deployment.hub_folder import write_hub_folder
from t2t.deployment.int8 import compare_accuracy, compare_classes
from t2t.deployment.options import ExportOptions
from t2t.deployment.parity import Parity, check_parity
from t2t.deployment.target import publish, target_of, unfinished
from t2t.deployment.weights_file import write_and_compare
from t2t.errors import UserError
from t2t.models.config import ModelConfig, Size
from t2t.models.create import as_size
from t2t.models.trained import TrainedModel, load_trained
from t2t.serving.export_metadata import MAX_SIDE, ExportMetadata

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
    `with_preprocessing`, `int8`, `val_images`, `license`.
    """
    chosen = ExportOptions(to=to, **options)
    if to == "onnx":
        onnx_file.check_packages()
    size = None if image_size is None else as_size(image_size)
    trained = load_trained(weights, model=model, image_size=size)
    trained.model.cpu().float().eval()
    height, width = trained.image_size
    if max(height, width) > MAX_SIDE:
        raise UserError(
            f"Images of {height}×{width} pixels are too large to export: give an image "
            f"size of up to {MAX_SIDE:,}×{MAX_SIDE:,}."
        )
    target = target_of(trained, chosen, weights, out)
    labelled = find_labelled(trained, data, chosen.val_images)
    words = [each for each in images if isinstance(each, str)]
    found = images_in(words) if len(words) == len(images) else list(images)
    other = other_size(trained.image_size) if chosen.dynamic_image_size else None
    checked = find_check_images(trained, found, labelled, other)
    one = Export(trained, chosen, checked, labelled, progress)
    with unfinished(target) as part:
        report = one.write(part, measure=data is not None)
        publish(part, target)
    return replace(report, path=target, notes=trained.notes)


@dataclass(frozen=True)
class Export:
    """One export: the model, the options and the images to check it on."""

    trained: TrainedModel
    options: ExportOptions
    checked: CheckImages
    labelled: LabelledImages | None
    progress: Progress

    def write(self, part: Path, *, measure: bool) -> ExportReport:
        """Writes and checks a file or folder; `measure` the accuracy in the card."""
        trained, options = self.trained, self.options
        if options.to in ("onnx", "torch-export"):
            return self.write_graph(part)
        metadata = metadata_of(trained, options, "logits")
        if options.to == "safetensors":
            parity = write_and_compare(trained, part, self.checked)
            return ExportReport(part, options.to, metadata, parity)
        parity, accuracy = write_hub_folder(
            trained,
            part,
            options.license,
            self.checked,
            self.labelled,
            self.progress,
            measure=measure,
        )
        return ExportReport(part, options.to, metadata, parity, accuracy)

    def write_graph(self, part: Path) -> ExportReport:
        """Writes an ONNX or torch.export file."""
        trained, options = self.trained, self.options
        graph = ExportedGraph(
            trained,
            with_preprocessing=options.with_preprocessing,
            multilabel=trained.is_multilabel,
        )
        check_any_size(graph, trained.name, self.checked.batches[1:])
        metadata = metadata_of(trained, options, graph.output)
        if options.to == "torch-export":
            torch_export_file.write_torch_export(
                graph, part, metadata, trained.image_size
            )
            run: Runner = torch_export_file.TorchExportRunner(part, graph)
            what = f"{trained.name} as torch.export"
            parity = check_parity(what, run, graph.outputs_for, self.checked)
            return ExportReport(part, options.to, metadata, parity)
        onnx_file.write_onnx(graph, part, metadata, trained.image_size)
        run = onnx_file.OnnxRunner(part, graph)
        what = f"{trained.name} as ONNX"
        parity = check_parity(what, run, graph.outputs_for, self.checked)
        metadata = replace(metadata, parity=str(parity))
        if options.int8:
            metadata = self.quantize(part, graph, run, metadata)
        onnx_file.rewrite_metadata(part, metadata)
        return ExportReport(part, options.to, metadata, parity, metadata.accuracy)

    def quantize(
        self,
        part: Path,
        graph: ExportedGraph,
        float32: Runner,
        metadata: ExportMetadata,
    ) -> ExportMetadata:
        """Replaces an ONNX file by its int8 form, and states its accuracy."""
        whole = part.with_name(f"float32.{part.name}")
        part.rename(whole)
        metadata = onnx_file.quantize(whole, part, metadata)
        int8 = onnx_file.OnnxRunner(part, graph)
        if self.labelled is None or metadata.multilabel:
            accuracy = compare_classes(
                float32, int8, self.checked, multilabel=metadata.multilabel
            )
        else:
            accuracy = compare_accuracy(
                float32, int8, self.trained, self.labelled, self.progress
            )
        return replace(metadata, accuracy=accuracy)


def metadata_of(
    trained: TrainedModel, options: ExportOptions, output: str
) -> ExportMetadata:
    """The metadata of the file."""
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
        multilabel=trained.is_multilabel,
        input="uint8" if options.with_preprocessing else "normalised",
        output=output,
        dynamic_image_size=options.dynamic_image_size,
        data=trained.data_name,
        t2t_version=t2t.__version__,
    )


def other_size(size: Size) -> Size:
    """A larger and not square size, on which a graph for any size is checked too."""
    height, width = size
    return height + max(height // 2, 16), width + max(width // 4, 8)
