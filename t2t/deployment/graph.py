"""The module that is exported: a model, with its preprocessing on request."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from t2t.data.augment.pipeline import scale_and_shift
from t2t.errors import UserError
from t2t.models.config import Size
from t2t.models.trained import TrainedModel

INPUT = "images"
"""Name of the exported graph's input."""
LOGITS = "logits"
PROBABILITIES = "probabilities"


class ExportedGraph(nn.Module):
    """Images to logits; or, with preprocessing, uint8 pixels to probabilities.

    Resizing and cropping stay outside: no graph format has Pillow's filter, which
    rounds to whole levels after each side.
    """

    def __init__(
        self, trained: TrainedModel, *, with_preprocessing: bool, multilabel: bool
    ) -> None:
        super().__init__()
        self.model = trained.model.cpu().float().eval()
        self.with_preprocessing = with_preprocessing
        self.multilabel = multilabel
        like = torch.empty(1, trained.channels, 1, 1)
        scale, shift = scale_and_shift(like, trained.mean, trained.std)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.scale: Tensor
        self.shift: Tensor

    @property
    def output(self) -> str:
        """The name of the output."""
        return PROBABILITIES if self.with_preprocessing else LOGITS

    def forward(self, images: Tensor) -> Tensor:
        if not self.with_preprocessing:
            logits: Tensor = self.model(images)
            return logits
        logits = self.model(images.float() * self.scale + self.shift)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=1)

    def inputs_for(self, pixels: Tensor) -> Tensor:
        """The input of the graph for uint8 pixels."""
        if self.with_preprocessing:
            return pixels
        return pixels.float() * self.scale + self.shift

    @torch.inference_mode()
    def outputs_for(self, pixels: Tensor) -> Tensor:
        """PyTorch's outputs for uint8 pixels."""
        return self.forward(self.inputs_for(pixels))

    def example(self, size: Size, channels: int) -> Tensor:
        """An input for tracing, whose values do not matter."""
        return self.inputs_for(torch.zeros(2, channels, *size, dtype=torch.uint8))


def dynamic_axes(dynamic_image_size: bool) -> tuple[dict[int, object]]:
    """The axes of the input that may have any size."""
    axes: dict[int, object] = {0: torch.export.Dim("batch")}
    if dynamic_image_size:
        for axis in (2, 3):
            axes[axis] = torch.export.Dim.DYNAMIC
    return (axes,)


def check_any_size(graph: ExportedGraph, name: str, batches: Sequence[Tensor]) -> None:
    """Raises an error if the network itself does not take images of each size."""
    for batch in batches:
        try:
            graph.outputs_for(batch[:1])
        # Networks of timm and of a user's file assert what they like.
        except Exception as error:
            raise one_size_only(name) from error


def one_size_only(name: str) -> UserError:
    """The error for a network that is not exported for images of any size."""
    return UserError(
        f"{name} cannot be exported for images of any size: it seems to take one only, "
        "or multiples of its patches; leave --dynamic-image-size out."
    )
