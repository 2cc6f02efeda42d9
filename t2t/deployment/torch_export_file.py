"""Writes graphs of `torch.export`, which load without this package."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from t2t.deployment.graph import ExportedGraph, dynamic_axes
from t2t.deployment.onnx_file import quiet_exporter, unexportable
from t2t.models.config import Size
from t2t.serving.export_metadata import ExportMetadata

METADATA_FILE = "t2t.json"
"""The metadata's name among the extra files of a .pt2."""


def write_torch_export(
    graph: ExportedGraph, file: Path, metadata: ExportMetadata, size: Size
) -> None:
    """Writes the graph with its metadata as an extra file."""
    example = graph.example(size, metadata.channels)
    with quiet_exporter():
        try:
            program = torch.export.export(
                graph,
                (example,),
                dynamic_shapes=dynamic_axes(metadata.dynamic_image_size),
            )
        # torch.export raises errors of many kinds.
        except Exception as error:
            raise unexportable("by torch.export", metadata, error) from error
        for module in program.graph_module.modules():
            if isinstance(module, torch.fx.GraphModule):
                for node in module.graph.nodes:  # paths of this machine
                    node.meta.pop("stack_trace", None)
        extra = {METADATA_FILE: metadata.to_json()}
        # torch's own writer ends the process if the disk is full.
        content = io.BytesIO()
        torch.export.save(program, content, extra_files=extra)
    file.write_bytes(content.getbuffer())


class TorchExportRunner:
    """Runs an exported file on tensors."""

    def __init__(self, file: Path, graph: ExportedGraph) -> None:
        with quiet_exporter():
            self.module = torch.export.load(file).module()
        self.graph = graph

    @torch.inference_mode()
    def __call__(self, pixels: Tensor) -> np.ndarray:
        outputs: Tensor = self.module(self.graph.inputs_for(pixels))
        return outputs.numpy()
