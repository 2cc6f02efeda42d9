"""Costs against hand counts, torch's own counter and what real tensors keep."""

from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from t2t.analysis.cost import ITEMS, Cost, Part, count
from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.zoo import T2T_7, T2T_14, softmax_tokens

PRODUCTS = ("linear", "convolution", "attention", "kernel features")


def build(config: ModelConfig, **model_args: object) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(replace(config, **model_args))


def part(cost: Cost, name: str) -> Part:
    return next(part for part in cost.parts if part.name == name)


def test_t2t_vit_14_is_counted_item_by_item() -> None:
    cost = count(build(T2T_14))
    tokens, dim, hidden = 197, 384, 1152
    assert cost.items == {
        "linear": (
            # Token transformers: one projection and two MLP layers of 64 × 64.
            (56**2 + 28**2) * 3 * 64 * 64
            + 14 * tokens * (4 * dim**2 + 2 * dim * hidden)
            + dim * 1000
        ),
        "convolution": (
            56**2 * 3 * 49 * 192 + 28**2 * 64 * 9 * 192 + 14**2 * 64 * 9 * dim
        ),
        # Performer: features × values and features × queries; then 14 blocks.
        "attention": (56**2 + 28**2) * 2 * 32 * 64 + 14 * 2 * tokens**2 * dim,
        "kernel features": (56**2 + 28**2) * 2 * 32 * 64,
        "normalisation": 5
        * (56**2 * (147 + 64) + 28**2 * (576 + 64) + (2 * 14 + 1) * tokens * dim),
        "scales": 0,
    }
    assert cost.macs == sum(cost.items.values()) == 4_800_129_344
    assert cost.parameters == 21_465_806
    assert cost.frozen_parameters == 2 * 32 * 64
    assert cost.items.keys() == ITEMS.keys()
    page = (Path(__file__).parents[2] / "docs/counting.md").read_text()
    for item, macs in cost.items.items():
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {item} "))
        figures = [cell.strip() for cell in row.split("|")[3:5]]
        assert float(figures[0].replace(",", "")) == round(macs / 1e6, 1)
        assert float(figures[1].rstrip(" %")) == round(100 * macs / cost.macs, 1)


def test_scales_of_ghost_layers_and_gates_are_counted() -> None:
    ghost = count(build(T2T_7, depth=3, mixer="ghost", mlp="ghost"))
    # Half of q, k and v; the MLP is two shares wide, one of them scaled.
    assert ghost.items["scales"] == 3 * 197 * (3 * 128 + 256)
    gated = count(build(T2T_7, depth=3, mixer="attention_se"))
    assert gated.items["scales"] == 3 * 197 * 256


@pytest.mark.parametrize(
    "model_args",
    [
        {},
        {"tokenizer": "t2t", "positions": "relative", "positions_at": "every_layer"},
        {"mixer": "linformer", "distilled": True},
        {"mixer": "ghost", "mlp": "ghost", "tokenizer": "patch"},
        {"wiring": "dense", "dense_stages": (1, 1), "growth": 64},
    ],
    ids=lambda model_args: "-".join(map(str, model_args)) or "plain",
)
def test_products_are_those_of_torchs_counter(model_args: dict[str, object]) -> None:
    model = build(T2T_7, depth=2, **model_args).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 224, 224, device="meta"))
    cost = count(model)
    products = sum(cost.items[item] for item in PRODUCTS)
    assert 2 * products == counter.get_total_flops()


@pytest.mark.parametrize("name", ["resnet18", "deit_tiny_patch16_224"])
def test_timm_models_are_counted_too(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 224, 224, device="meta"))
    cost = count(model)
    assert 2 * sum(cost.items[item] for item in PRODUCTS) == counter.get_total_flops()
    assert cost.image_size == (224, 224)
    assert cost.activation_bytes > 0


class Layers(nn.Sequential):
    """A grouped and a transposed convolution, then a linear layer."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
            nn.ConvTranspose2d(8, 6, 2, stride=2),
            nn.Flatten(),
            nn.Linear(6 * 8 * 8, 10),
        )


def test_convolutions_count_one_filter_for_each_place() -> None:
    cost = count(Layers(), image_size=8)
    grouped = 8 * 4 * 4 * (2 * 9)
    transposed = 8 * 4 * 4 * (6 * 4)
    assert cost.in_channels == 4
    assert cost.items["convolution"] == grouped + transposed
    assert cost.items["linear"] == 6 * 64 * 10
    assert [p.macs for p in cost.parts[1:]] == [grouped, transposed, 0, 3840]


def test_activations_are_what_the_backward_pass_needs() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(48, 20), nn.GELU(), nn.Linear(20, 5), nn.ReLU()
    )
    cost = count(model, image_size=4, in_channels=3)
    # Inputs of both layers, of GELU, and the output of ReLU; each once.
    assert cost.activation_bytes == 4 * (48 + 20 + 20 + 5)
    assert cost.activation_bytes_bf16 == 2 * (48 + 20 + 20 + 5)
    assert [part.activation_bytes for part in cost.parts[1:]] == [0, 192, 80, 80, 20]


def kept_by_real_tensors(model: nn.Module, images: Tensor) -> int:
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    own |= {b.untyped_storage().data_ptr() for b in model.buffers()}
    kept: dict[int, int] = {}
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # The result stays alive, else its graph frees what it kept.
        result = model.train()(images)
    del result
    return sum(kept.values())


@pytest.mark.parametrize("config", [T2T_7, softmax_tokens(T2T_7)])
def test_activations_agree_with_real_tensors(config: ModelConfig) -> None:
    model = VisionTransformer(replace(config, image_size=(64, 64), depth=2))
    more, few = (
        kept_by_real_tensors(model, torch.zeros(batch, 3, 64, 64)) for batch in (3, 2)
    )
    assert count(model).activation_bytes == pytest.approx(more - few, rel=0.01)


class Attend(nn.Module):
    """Attention among pixels, whose channels lie side by side or apart."""

    def __init__(self, side_by_side: bool) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 8, 1)
        self.side_by_side = side_by_side

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.project(images).flatten(2).transpose(1, 2).unsqueeze(1)
        if self.side_by_side:
            tokens = tokens.contiguous()
        return F.scaled_dot_product_attention(tokens, tokens, tokens)


def test_only_fused_attention_keeps_no_map() -> None:
    pixels = 16 * 16
    fused = count(Attend(True), image_size=16).activation_bytes
    # Images, tokens, results and one log-sum a token.
    assert fused == 4 * pixels * (3 + 8 + 8 + 1)
    assert count(Attend(False), image_size=16).activation_bytes > 4 * pixels**2


def test_parts_add_up() -> None:
    cost = count(build(T2T_14))
    whole, *rest = cost.parts
    top = [p for p in rest if "." not in p.name]
    assert [p.name for p in top] == ["prefix", "tokenizer", "encoder", "norm", "head"]
    for figure in ("parameters", "macs", "activation_bytes"):
        assert sum(getattr(p, figure) for p in top) == getattr(whole, figure)
    assert whole.macs == cost.macs
    assert whole.parameters == cost.parameters
    assert whole.activation_bytes == cost.activation_bytes
    # The weights of these layers are applied by what holds them.
    assert part(cost, "tokenizer.project").macs == 14 * 14 * 576 * 384
    assert part(cost, "tokenizer.steps.0.qkv").macs == 56 * 56 * 147 * 192
    assert part(cost, "tokenizer.steps.0.norm1").macs == 5 * 56 * 56 * 147
    assert part(cost, "encoder.blocks.3").macs == part(cost, "encoder.blocks.9").macs


def test_size_and_channels_can_be_chosen() -> None:
    model = build(T2T_7, in_channels=1)
    cost = count(model, image_size=(96, 160))
    assert (cost.image_size, cost.in_channels) == ((96, 160), 1)
    rows, columns = 6, 10
    assert part(cost, "tokenizer.project").macs == rows * columns * 576 * 256
    assert count(model, 64).image_size == (64, 64)


def test_the_model_stays_as_it_was() -> None:
    model = VisionTransformer(replace(T2T_7, depth=1, image_size=(32, 32)))
    model.head.requires_grad_(False)
    model.encoder.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cost = count(model)
    assert cost.frozen_parameters == 2 * 32 * 64 + 256 * 1000 + 1000
    assert model.training
    assert not model.encoder.training
    assert all(not module._forward_hooks for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert cost == count(model)


def test_mistakes_are_reported() -> None:
    with pytest.raises(UserError, match="image_size"):
        count(Layers())
    with pytest.raises(UserError, match="Layers cannot take images of 9×9 pixels"):
        count(Layers(), image_size=9)
