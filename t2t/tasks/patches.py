"""Patches that tasks mask: squares of pixels, each of whole tokens."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from t2t.data.augment.pipeline import levels_of
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.models.vit import VisionTransformer
from t2t.shapes import Images, Tokens
from t2t.tasks.base import Task, TaskContext

MIN_PATCH_SIZE = 4
"""The default patch of small tokens: what is missing must not follow from a pixel."""

PatchNumbers = Int64[Tensor, "batch chosen"]
"""Numbers of patches of each image, row by row from 0."""
PatchMask = Bool[Tensor, "batch patches"]


class PatchGrid(nn.Module):
    """The patches of an image, row by row.

    Overlapping windows have no pixels of their own; a token stands for its cell, the
    pixels that are left if the image is divided evenly among the tokens.
    """

    tokens: Int64[Tensor, "patches tokens"]
    """The numbers of each patch's tokens."""

    def __init__(
        self, image_size: tuple[int, int], grid: tuple[int, int], side: int | None
    ) -> None:
        super().__init__()
        self.token_size = token_size(image_size, grid)
        self.side = patch_size(image_size, self.token_size, side)
        height, width = image_size
        self.rows, self.columns = height // self.side, width // self.side
        self.num_patches = self.rows * self.columns
        self.tokens_per_side = self.side // self.token_size
        numbers = torch.arange(grid[0] * grid[1]).view(1, 1, *grid)
        cells = self.cells(numbers, 1)[0].flatten(1)
        self.register_buffer("tokens", cells, persistent=False)

    def cells(self, values: Tensor, size: int) -> Tensor:
        """An image's values by patch, token and place in the token.

        `size` is the side of a token in the image: 1 for an image of tokens.
        """
        num = self.tokens_per_side
        parts = values.unflatten(3, (self.columns, num, size))
        parts = parts.unflatten(2, (self.rows, num, size))
        # batch, channels, row, token row, y, column, token column, x
        parts = parts.permute(0, 2, 5, 3, 6, 4, 7, 1)
        return parts.flatten(5, 7).flatten(3, 4).flatten(1, 2)

    def split(self, images: Tensor) -> Float[Tensor, "batch patches tokens values"]:
        """The pixels of each patch, by its tokens."""
        return self.cells(images, self.token_size)

    def join(self, patches: Float[Tensor, "batch patches tokens values"]) -> Tensor:
        """The images of patches as `split` gives them."""
        num, size = self.tokens_per_side, self.token_size
        parts = patches.unflatten(3, (size, size, -1)).unflatten(2, (num, num))
        parts = parts.unflatten(1, (self.rows, self.columns))
        parts = parts.permute(0, 7, 1, 3, 5, 2, 4, 6)
        return parts.flatten(5, 7).flatten(2, 4)

    def enlarge(self, values: Tensor, size: int) -> Tensor:
        """Values of patches, repeated `size` times in both directions."""
        image = values.unflatten(1, (self.rows, self.columns))
        return image.repeat_interleave(size, 1).repeat_interleave(size, 2)

    def to_pixels(self, mask: PatchMask) -> Bool[Tensor, "batch one height width"]:
        """A mask of patches as one of pixels."""
        return self.enlarge(mask, self.side)[:, None]

    def to_tokens(self, mask: PatchMask) -> Bool[Tensor, "batch tokens"]:
        """A mask of patches as one of tokens."""
        return self.enlarge(mask, self.tokens_per_side).flatten(1)

    def tokens_of(self, patches: PatchNumbers) -> Int64[Tensor, "batch tokens"]:
        """The tokens of patches, patch after patch."""
        return self.tokens[patches].flatten(1)

    def mean_of_tokens(self, tokens: Tokens) -> Float[Tensor, "batch patches dim"]:
        """The mean of each patch's tokens."""
        num = self.tokens_per_side
        if num == 1:
            return tokens
        shape = (self.rows, num, self.columns, num)
        return tokens.unflatten(1, shape).mean((2, 4)).flatten(1, 2)


def token_size(image_size: tuple[int, int], grid: tuple[int, int]) -> int:
    """The side of a token's cell in pixels."""
    sides = {divmod(pixels, num) for pixels, num in zip(image_size, grid, strict=True)}
    if len(sides) > 1 or any(rest for _, rest in sides):
        raise UserError(
            f"image_size={image_size[0]}×{image_size[1]} does not divide into squares "
            f"of whole pixels for {grid[0]}×{grid[1]} tokens; choose sides that are "
            "multiples of the tokenizer's stride."
        )
    ((size, _),) = sides
    return size


def patch_size(image_size: tuple[int, int], token: int, given: int | None) -> int:
    """The side of a patch: the given one, or the smallest of at least 4 pixels."""
    height, width = image_size
    sides = [
        side
        for side in range(token, min(height, width) + 1, token)
        if height % side == 0 and width % side == 0 and height * width > side**2
    ]
    if not sides:
        raise UserError(
            f"image_size={height}×{width} is one token, and a part of an image is to "
            "be masked; choose larger images or smaller strides."
        )
    if given is None:
        return next((side for side in sides if side >= MIN_PATCH_SIZE), token)
    if given not in sides:
        raise UserError(
            f"task_args.patch_size={given} does not cut {height}×{width} pixels into "
            f"patches of whole tokens of {token} pixels; choose one of "
            f"{', '.join(map(str, sides))}."
        )
    return given


class MaskToken(nn.Module):
    """A learned vector that stands for tokens that are hidden."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim), std=0.02))

    def forward(self, tokens: Tokens, mask: Bool[Tensor, "batch tokens"]) -> Tokens:
        return torch.where(mask[:, :, None], self.vector.to(tokens.dtype), tokens)


def random_order(rng: CounterRng, num: int) -> PatchNumbers:
    """All patches of each image in a random order."""
    return rng.bits("mask.order", num).argsort(dim=1, stable=True)


def fixed_rng(levels: Tensor) -> CounterRng:
    """Draws that depend on an image's levels alone: its mask in every evaluation."""
    values = levels.flatten(1).long()
    weights = torch.arange(1, values.shape[1] + 1, device=levels.device)
    return CounterRng.of(0, 0, (values * weights * weights).sum(1))


class PatchTask(Task):
    """The base of tasks that mask patches of images without labels."""

    needs_labels = False
    model: VisionTransformer

    def __init__(
        self, model: nn.Module, context: TaskContext, args: object, side: int | None
    ) -> None:
        super().__init__(model, context, args)
        if not isinstance(model, VisionTransformer):
            raise UserError(
                f"This task masks tokens, and {context.model_name} is timm's; choose "
                "one of t2t's vision transformers, which `t2t models` lists."
            )
        if context.keep_tokens < 1:
            raise UserError(
                "This task chooses itself which tokens the blocks see; set "
                "token_dropping.keep=1."
            )
        if context.resizes:
            raise UserError(
                "This task masks patches of images of one size; set "
                "progressive_resizing.initial_scale=1."
            )
        if model.encoder.stage_ends:
            raise UserError(
                "This task predicts every masked token, and wiring='pyramid' merges "
                "tokens; choose another wiring."
            )
        self.grid = model.tokenizer.grids(context.image_size)[-1]
        self.patches = PatchGrid(context.image_size, self.grid, side)

    def blank(self, images: Images, mask: PatchMask) -> Images:
        """Images whose masked patches have the mean colour of the data."""
        return images.masked_fill(self.patches.to_pixels(mask), 0.0)

    def levels(self, images: Images) -> Float[Tensor, "batch channels height width"]:
        """The levels from 0 to 255 of normalised images."""
        return levels_of(images, self.context.mean, self.context.std)
