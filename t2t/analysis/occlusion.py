"""Occlusion maps: how much hiding each part of an image lowers a probability."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from t2t.analysis.attention_maps import Map
from t2t.shapes import Images

NUM_CELLS = 8
"""Rows and columns of the occlusion map."""
BATCH_SIZE = 32


def occlusion_map(
    model: nn.Module, image: Images, class_index: int, *, multilabel: bool = False
) -> Map:
    """Percentage points that a class loses where the image is the mean colour."""

    def probability(images: Images) -> Tensor:
        logits = model(images).float()
        probabilities = logits.sigmoid() if multilabel else logits.softmax(1)
        return probabilities[:, class_index].cpu()

    occlusion = Occlusion(image)
    num = len(occlusion.squares)
    probabilities = torch.cat(
        [
            probability(occlusion.hidden(start, start + BATCH_SIZE))
            for start in range(0, num, BATCH_SIZE)
        ]
    )
    return occlusion.map((100 * (probability(image) - probabilities)).tolist())


class Occlusion:
    """The parts of an image that are hidden one after the other.

    A square of two by two cells slides over the image, a cell at a time; each cell has
    the mean over the squares that cover it.
    """

    def __init__(self, image: Images) -> None:
        self.image = image[0]
        height, width = image.shape[-2:]
        self.rows, self.columns = cell_edges(height), cell_edges(width)
        self.squares = [
            (row, column)
            for row in range(-1, len(self.rows) - 1)
            for column in range(-1, len(self.columns) - 1)
        ]

    def hidden(self, start: int, end: int) -> Images:
        """Copies of the image, each with one of these squares in the mean colour."""
        copies = []
        for row, column in self.squares[start:end]:
            copy = self.image.clone()
            copy[:, two_cells(self.rows, row), two_cells(self.columns, column)] = 0.0
            copies.append(copy)
        return torch.stack(copies)

    def map(self, lost: Sequence[float]) -> Map:
        """The cost of hiding each cell, given that of hiding each square."""
        total = torch.zeros(len(self.rows) - 1, len(self.columns) - 1)
        for (row, column), points in zip(self.squares, lost, strict=True):
            total[max(row, 0) : row + 2, max(column, 0) : column + 2] += points
        return total / 4


def cell_edges(side: int) -> list[int]:
    """Pixel edges of the cells along a side; a short side has one cell per pixel."""
    num = min(NUM_CELLS, side)
    return [round(number * side / num) for number in range(num + 1)]


def two_cells(edges: list[int], cell: int) -> slice:
    """The pixels of a cell and the next one, within the image."""
    return slice(edges[max(cell, 0)], edges[min(cell + 2, len(edges) - 1)])
