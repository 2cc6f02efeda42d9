"""Parts of a model from a user's code: what is wrong with them is one sentence."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from t2t.errors import UserError
from t2t.models.blocks import MIXERS, MLPS, register_mixer, register_mlp
from t2t.models.create import create_model
from t2t.models.positions import POSITIONS, Positions, register_positions
from t2t.models.tokenizers import TOKENIZERS, Tokenizer, register_tokenizer

SIZES = {"dim": 8, "depth": 2, "num_heads": 2, "image_size": 8, "in_channels": 1}


@pytest.fixture(autouse=True)
def own_names() -> Iterator[None]:
    """Forgets what a test registers."""
    yield
    for registry in (MIXERS, MLPS, POSITIONS, TOKENIZERS):
        registry.pop("own", None)


def run(**choice: str) -> Tensor:
    tokens = {"tokenizer": "patch", "patch_size": 4}
    model = create_model("vit_small_16", **{**SIZES, **tokens, **choice})
    return model(torch.zeros(2, 1, 8, 8))


def part(forward: Callable[..., Any], **fields: Any) -> type[nn.Module]:
    """A mixer or an MLP with this `forward`."""

    class Own(nn.Module):
        def __init__(self, *sizes: Any) -> None:
            super().__init__()

    Own.forward = forward  # type: ignore[method-assign, assignment]
    for name, value in fields.items():
        setattr(Own, name, value)
    return Own


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            part(lambda self, tokens: tokens),
            r"forward of mixer='own' is called with \(tokens, grid, bias\), and "
            r"\(tokens\) does not take them: too many",
        ),
        (
            part(lambda self, tokens, grid, bias: tokens[:, 1:]),
            r"mixer='own' returned the shape \(2, 4, 8\); it must be that of the "
            r"tokens, \(2, 5, 8\)",
        ),
        (
            part(lambda self, tokens, grid, bias: None),
            r"mixer='own' returned a NoneType; it must be that of the tokens",
        ),
        (
            part(lambda self, tokens, grid, bias: tokens.double()),
            r"mixer='own' returned torch.float64 for tokens of torch.float32; return ",
        ),
    ],
)
def test_a_mixer(own: type[nn.Module], message: str) -> None:
    register_mixer("own")(own)
    with pytest.raises(UserError, match=message):
        run(mixer="own")


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (part(lambda self: 0), r"forward of mlp='own' is called with \(tokens\), and"),
        (
            part(lambda self, tokens: tokens, takes_grid=True),
            r"forward of mlp='own' is called with \(tokens, grid\), and",
        ),
        (part(lambda self, tokens: tokens[..., 1:]), r"mlp='own' returned .*\(2, 5, 7"),
    ],
)
def test_an_mlp(own: type[nn.Module], message: str) -> None:
    register_mlp("own")(own)
    with pytest.raises(UserError, match=message):
        run(mlp="own")


def returning(value: Any) -> Callable[..., Any]:
    return lambda self, grid: value


@pytest.mark.parametrize(
    ("method", "function", "message"),
    [
        ("add_to", lambda self, tokens: tokens, "add_to of positions='own' is called"),
        ("add_to", lambda self, tokens, grid: tokens[:1], r"add_to .* shape \(1, 5, 8"),
        (
            "embedding",
            returning(torch.zeros(4, 8)),
            r"embedding .*\(4, 8\); .*\(5, 8",
        ),
        ("embedding", returning("no"), "embedding of positions='own' returned a str"),
        ("attention_bias", lambda self: None, "attention_bias of positions='own' is c"),
        (
            "attention_bias",
            returning(torch.zeros(1, 2, 4, 4)),
            r"attention_bias of .*\(1, 2, 4, 4\); it must be .*\(1, 2, 5, 5\), or None",
        ),
    ],
)
def test_positions(method: str, function: Any, message: str) -> None:
    register_positions("own")(type("Own", (Positions,), {method: function}))
    with pytest.raises(UserError, match=message):
        run(positions="own")


def test_a_bias_may_be_the_same_for_all_heads() -> None:
    own = {"attention_bias": returning(torch.zeros(1, 1, 5, 5))}
    register_positions("own")(type("Own", (Positions,), own))
    assert run(positions="own").isfinite().all()


@pytest.mark.parametrize(
    ("method", "function", "message"),
    [
        ("forward", lambda self, images: None, "tokenizer='own' returned a NoneType"),
        (
            "forward",
            lambda self, images: images.flatten(2),
            r"returned the shape \(2, 1, 64\); by its splits and dim=8 it must be "
            r"\(batch, 8, 2, 2\)",
        ),
        (
            "forward",
            lambda self, images: torch.zeros(1, 8, 2, 2),
            r"returned the shape \(1, 8, 2, 2\); by its splits and dim=8 it must be "
            r"\(batch, 8, 2, 2\)",
        ),
        (
            "__init__",
            lambda self, config: Tokenizer.__init__(self, []),
            r"Own has no splits: give the \(kernel, stride, padding\) of each stage",
        ),
        ("grids", lambda self: [], "grids of tokenizer='own' is called with"),
    ],
)
def test_a_tokenizer(method: str, function: Any, message: str) -> None:
    class Own(Tokenizer):
        def __init__(self, config: Any) -> None:
            super().__init__([(4, 4, 0)])

        def forward(self, images: Tensor) -> Tensor:
            return images

    setattr(Own, method, function)
    register_tokenizer("own")(Own)
    with pytest.raises(UserError, match=message):
        run(tokenizer="own")
