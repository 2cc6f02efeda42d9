"""Training on some of the tokens: which, when, and with which designs."""

from typing import Any

import pytest
import torch

import t2t
from t2t.errors import UserError
from t2t.models.token_dropping import drop_tokens

SMALL: dict[str, Any] = {"image_size": 32, "num_classes": 5, "depth": 2}


def test_kept_tokens_are_the_prefix_and_different_tokens_of_each_image() -> None:
    places = torch.arange(17.0).expand(3, 17)[:, :, None]
    kept = drop_tokens(places, 1, 0.5)[:, :, 0]
    assert kept.shape == (3, 9)
    assert (kept[:, 0] == 0).all()
    rows = [sorted(row.tolist()) for row in kept[:, 1:]]
    assert all(len(set(row)) == 8 and min(row) >= 1 for row in rows)
    assert rows[0] != rows[1]
    assert drop_tokens(places, 1, 0.01).shape == (3, 2, 1)


def test_gradients_go_back_to_the_tokens_that_were_kept() -> None:
    tokens = torch.randn(3, 17, 4, dtype=torch.float64, requires_grad=True)
    kept = drop_tokens(tokens, 1, 0.5)
    kept.square().sum().backward()
    wanted = torch.where(
        (tokens[:, :, None] == kept[:, None]).all(-1).any(2)[..., None], 2 * tokens, 0
    )
    assert tokens.grad is not None
    torch.testing.assert_close(tokens.grad, wanted.detach())


def test_blocks_see_fewer_tokens_in_training_alone() -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL, class_token=False, pool="mean")
    images = torch.randn(2, 3, 32, 32)
    seen: list[int] = []
    model.encoder.blocks[1].register_forward_hook(
        lambda module, inputs, output: seen.append(output.shape[1])
    )
    model.encoder.keep_tokens(0.5)
    model.train()(images).sum().backward()
    model.eval()(images)
    model.encoder.keep_tokens(1.0)
    model.train()(images)
    assert seen == [2, 4, 4]
    assert model.tokenizer.project.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "model_args",
    [
        {"positions": "relative"},
        {"positions": "learned_1d", "positions_at": "every_layer"},
        {"mixer": "linformer"},
    ],
)
def test_designs_that_need_every_place_refuse(model_args: dict[str, Any]) -> None:
    model = t2t.create_model("t2t_vit_7", **SMALL, **model_args)
    model.encoder.keep_tokens(1.0)
    with pytest.raises(UserError, match=r"dropping\.keep=1"):
        model.encoder.keep_tokens(0.5)
