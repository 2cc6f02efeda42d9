"""Writes ONNX files with names, metadata and, on request, int8 weights."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2t.deployment.graph import INPUT, ExportedGraph, dynamic_axes, one_size_only
from t2t.errors import UserError, first_line
from t2t.models.config import Size
from t2t.serving.export_metadata import ExportMetadata
from t2t.serving.onnx_predictor import import_onnxruntime, open_session

INSTALL = (
    "Exporting to ONNX needs onnx, onnxscript and onnxruntime: run `pip install "
    "'.[export]'` in a checkout."
)
MAX_FILE_BYTES = 1_900_000_000
"""Protocol buffers end at 2 GB; larger weights go into a second file beside it."""
DYNAMIC_INT8 = "int8 weights, activations quantized to int8 as they are computed"


def check_packages() -> None:
    """Raises an error if a package of the `export` extra is missing."""
    try:
        import_onnxruntime()
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(INSTALL) from error


def write_onnx(
    graph: ExportedGraph,
    file: Path,
    metadata: ExportMetadata,
    size: Size,
) -> None:
    """Writes the graph in float32; large weights into `file`.data beside it."""
    example = graph.example(size, metadata.channels)
    with quiet_exporter():
        try:
            program: Any = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                verbose=False,
                dynamic_shapes=dynamic_axes(metadata.dynamic_image_size),
                input_names=[INPUT],
                output_names=[graph.output],
            )
        # The exporter's errors are of its own kinds, and pages long.
        except Exception as error:
            raise unexportable("to ONNX", metadata, error) from error
    strip_traces(program.model)
    name_axes(program.model, metadata)
    set_metadata(program.model, metadata)
    num_bytes = sum(weight.nbytes for weight in graph.state_dict().values())
    program.save(file, external_data=num_bytes > MAX_FILE_BYTES)


def unexportable(how: str, metadata: ExportMetadata, error: Exception) -> UserError:
    """The error for a network that an exporter does not take."""
    if metadata.dynamic_image_size:
        return one_size_only(metadata.model)
    return UserError(f"{metadata.model} cannot be exported {how} ({reason(error)}).")


def reason(error: BaseException) -> str:
    """The first line of the error that an exporter's error hides."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error).rstrip(".")


def strip_traces(model: Any) -> None:
    """Removes paths and source lines of this machine, from which operations came."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for output in node.outputs:
            output.metadata_props.clear()
    for weight in model.graph.initializers.values():
        weight.metadata_props.clear()
    for value in model.graph.inputs:
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()


def name_axes(model: Any, metadata: ExportMetadata) -> None:
    """Calls the axes batch, height and width."""
    import onnx_ir

    (images,) = model.graph.inputs
    sides = ("height", "width") if metadata.dynamic_image_size else metadata.image_size
    images.shape = onnx_ir.Shape(["batch", metadata.channels, *sides])
    (outputs,) = model.graph.outputs
    outputs.shape = onnx_ir.Shape(["batch", len(metadata.class_names)])


def set_metadata(model: Any, metadata: ExportMetadata) -> None:
    """Adds the metadata, and names the producer."""
    model.metadata_props.update(metadata.to_strings())
    model.producer_name, model.producer_version = "t2t", metadata.t2t_version
    model.graph.name = metadata.model
    model.doc_string = (
        f"{metadata.model}, {len(metadata.class_names)} classes; the metadata has the "
        "class names and the preprocessing."
    )


def rewrite_metadata(file: Path, metadata: ExportMetadata) -> None:
    """Replaces the metadata of a file; weights beside it stay as they are."""
    import onnx

    model = onnx.load(str(file), load_external_data=False)
    onnx.helper.set_model_props(model, metadata.to_strings())
    onnx.save(model, str(file))


def quantize(source: Path, file: Path, metadata: ExportMetadata) -> ExportMetadata:
    """Writes an int8 copy: the weights of products per channel, the rest in float32.

    Static quantization is hardly faster than float32 (records/export).
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if file.with_name(f"{file.name}.data").exists():
        raise UserError(
            f"{metadata.model} takes more than {MAX_FILE_BYTES / 1e9:g} GB, "
            "which ONNX Runtime does not quantize: export it without int8."
        )
    model = onnx.load(str(source))
    # The quantizer transposes weights, but not the shapes that the file has of them.
    del model.graph.value_info[:]
    with quiet_exporter():
        quantize_dynamic(
            model,
            file,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
        )
    return replace(metadata, quantization=DYNAMIC_INT8)


class OnnxRunner:
    """Runs an exported file on tensors."""

    def __init__(self, file: Path, graph: ExportedGraph) -> None:
        self.session = open_session(file)
        self.graph = graph

    def __call__(self, pixels: Tensor) -> np.ndarray:
        inputs = self.graph.inputs_for(pixels).numpy()
        (outputs,) = self.session.run(None, {INPUT: inputs})
        found: np.ndarray = outputs
        return found


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keeps the exporter's progress, warnings and logs from the user's screen."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
