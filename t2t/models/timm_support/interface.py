"""The methods that timm's trainers and feature extractors call on a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from t2t.errors import UserError, choose
from t2t.models.timm_support.dropout import DropoutLinear
from t2t.shapes import Images, Tokens

if TYPE_CHECKING:
    from t2t.models.config import ModelConfig, Size
    from t2t.models.encoders import Encoder
    from t2t.models.token_grid import Grid
    from t2t.models.tokenizers import Tokenizer
    from t2t.models.vit import VisionTransformer

POOL_OF_TIMM = {"token": "class", "avg": "mean", "": "none"}


class TimmInterface(nn.Module):
    """timm's model interface."""

    config: "ModelConfig"
    tokenizer: "Tokenizer"
    encoder: "Encoder"
    norm: nn.Module
    head: nn.Module
    distillation_head: nn.Module | None
    drop_rate: float = 0.0

    if TYPE_CHECKING:

        def tokenize(self, images: Images) -> tuple[Tokens, Grid]: ...

        def new_head(self, num_classes: int) -> nn.Module: ...

    @property
    def num_classes(self) -> int:
        return self.config.num_classes

    @property
    def num_features(self) -> int:
        return self.encoder.out_dim

    head_hidden_size = num_features

    @property
    def embed_dim(self) -> int:
        return self.config.dim

    @property
    def num_prefix_tokens(self) -> int:
        return self.config.num_prefix_tokens

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Width and stride of each block's output, or of each stage's of a pyramid."""
        height, width = self.config.image_size
        grids = self.encoder.grids(self.tokenizer.grids((height, width))[-1])
        return [
            {
                "module": f"encoder.blocks.{layer}",
                "num_chs": self.encoder.out_dims[layer],
                "reduction": max(
                    1, round(max(height / grids[layer][0], width / grids[layer][1]))
                ),
            }
            for layer in self.encoder.feature_layers
        ]

    def get_classifier(self) -> nn.Module | tuple[nn.Module, nn.Module]:
        """The head, or both heads of a distilled model."""
        if self.distillation_head is None:
            return self.head
        return self.head, self.distillation_head

    def reset_classifier(
        self, num_classes: int, global_pool: str | None = None
    ) -> None:
        """Replaces the heads by new ones, and the pooling if given."""
        pool = self.config.pool
        if global_pool is not None:
            pool = choose("global_pool", global_pool, POOL_OF_TIMM)
            if pool == "class" and not self.config.class_token:
                raise UserError(
                    "global_pool='token' needs a class token, and this model has none; "
                    "use 'avg'."
                )
        self.config = replace(self.config, num_classes=num_classes, pool=pool)
        near = next(self.parameters())
        for name in ("head", "distillation_head"):
            if getattr(self, name) is not None:
                head = self.new_head(num_classes)
                if isinstance(head, nn.Linear):
                    nn.init.trunc_normal_(head.weight, std=0.02)
                    nn.init.zeros_(head.bias)
                setattr(self, name, head.to(near.device, near.dtype))
        self.drop_before_heads()

    def drop_before_heads(self) -> None:
        """Adds dropout of timm's `drop_rate` to the input of the heads."""
        for name in ("head", "distillation_head"):
            head = getattr(self, name)
            if self.drop_rate and isinstance(head, nn.Linear):
                setattr(self, name, DropoutLinear(head, before=self.drop_rate))

    def set_input_size(
        self,
        img_size: "int | Size | None" = None,
        patch_size: "int | Size | None" = None,
    ) -> None:
        """Resizes positions to another image size, like loading for that size."""
        from t2t.models.checkpoint_io.resize import set_image_size
        from t2t.models.create import as_size

        side = self.config.patch_size
        if patch_size is not None and as_size(patch_size) != (side, side):
            raise UserError(
                f"patch_size={patch_size} cannot be changed after creation; create "
                "the model with patch_size, or set img_size only."
            )
        if img_size is not None:
            set_image_size(cast("VisionTransformer", self), as_size(img_size))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes each block in the backward pass instead of storing it."""
        self.encoder.checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Position tables and prefix tokens, which are not decayed."""
        return {
            name
            for name, _ in self.named_parameters()
            if name == "prefix" or name.startswith("encoder.positions.")
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which layer a parameter belongs to, for layer-wise learning rates."""
        return {
            "stem": r"^prefix|^tokenizer|^encoder\.positions",
            "blocks": [
                (r"^encoder\.(?:blocks|downsamples)\.(\d+)", None),
                (r"^norm", (99999,)),
            ],
        }

    def forward_intermediates(
        self,
        x: Images,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> Any:
        """Tokens after chosen blocks, or stages of a pyramid, as maps or sequences."""
        if output_fmt not in ("NCHW", "NLC"):
            raise UserError(f"output_fmt={output_fmt!r} is not one of NCHW, NLC.")
        if norm and len(set(self.encoder.out_dims)) > 1:
            raise UserError(
                "norm=True needs blocks of one width, and this wiring has several; "
                "use norm=False."
            )
        layers = self.encoder.feature_layers
        take = [layers[each] for each in chosen_layers(len(layers), indices)]
        tokens, grid = self.tokenize(x)
        kept: list[Tensor] = []
        grids = []
        num_blocks = max(take) + 1 if stop_early else len(self.encoder.blocks)
        for layer in range(num_blocks):
            tokens = self.encoder.step(layer, tokens, grid)
            if layer in take:
                kept.append(self.norm(tokens) if norm else tokens)
                grids.append(grid)
            if layer + 1 < num_blocks:
                tokens, grid = self.encoder.next_stage(layer, tokens, grid)
        num_prefix = self.num_prefix_tokens
        prefixes = [item[:, :num_prefix] for item in kept]
        features = [item[:, num_prefix:] for item in kept]
        if output_fmt == "NCHW":
            features = [
                item.transpose(1, 2).unflatten(2, own).contiguous()
                for item, own in zip(features, grids, strict=True)
            ]
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": features}
            if return_prefix_tokens and num_prefix:
                result["image_intermediates_prefix"] = prefixes
            if not intermediates_only:
                result["image_features"] = self.norm(tokens)
            return result
        out: list[Any] = list(features)
        if return_prefix_tokens and num_prefix:
            out = list(zip(features, prefixes, strict=True))
        return out if intermediates_only else (self.norm(tokens), out)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Removes the blocks after the last one requested, the norm and the head."""
        layers = self.encoder.feature_layers
        take = chosen_layers(len(layers), indices)
        num_blocks = layers[max(take)] + 1
        self.encoder.keep(num_blocks)
        positions = self.encoder.positions
        if positions.positions_at == "every_layer":
            positions.tables = positions.tables[:num_blocks]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return take


def chosen_layers(depth: int, indices: int | Sequence[int] | None) -> list[int]:
    """Layer indices from timm's argument: the last n, a list, or None for all."""
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int):
        if not 1 <= indices <= depth:
            raise UserError(
                f"The last {indices} layers were requested, but the model has {depth}: "
                f"give a number from 1 to {depth}."
            )
        indices = range(depth - indices, depth)
    wrong = [index for index in indices if not -depth <= index < depth]
    if wrong or not indices:
        raise UserError(
            f"Layers {list(indices)} were requested, but the model has {depth}: give "
            f"indices from {-depth} to {depth - 1}."
        )
    return [index % depth for index in indices]
