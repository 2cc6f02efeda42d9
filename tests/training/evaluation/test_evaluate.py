"""Scores: every image once, by class, and as a table of confusions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from t2t.data.batches import LoaderOptions, evaluation_batches
from t2t.data.sources import open_splits
from t2t.errors import UserError
from t2t.tasks.classify import score_classifier
from t2t.training.distributed import World
from t2t.training.evaluation.evaluate import Normalize, evaluate, evaluate_models
from t2t.training.evaluation.score import Score

ALONE = World(0, 1, torch.device("cpu"))
AS_LEVELS = Normalize(mean=(0.0,) * 3, std=(1 / 255,) * 3)


class BrightestChannel(nn.Module):
    """Calls an image by its brightest channel, and class 0 by class 2's name."""

    def __init__(self, num_others: int = 0) -> None:
        super().__init__()
        self.num_others = num_others

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        means = images.mean((2, 3))
        logits = means[:, [2, 1, 0]] / 10
        return nn.functional.pad(logits, (0, self.num_others), value=-100.0)


def scored(
    model: nn.Module,
    batches: Any,
    num_classes: int,
    precision: torch.dtype = torch.float32,
) -> Score:
    values = evaluate(model, batches, AS_LEVELS, score_classifier, ALONE, precision)
    return Score.of(values, num_classes)


@pytest.fixture
def validation(images: Path) -> Any:
    source = open_splits(str(images)).val

    def batches(batch_size: int, rank: int = 0, world_size: int = 1) -> Any:
        return evaluation_batches(
            source,
            batch_size=batch_size,
            crop=None,
            device="cpu",
            rank=rank,
            world_size=world_size,
            loader_options=LoaderOptions(num_workers=1),
        )

    return batches


@pytest.mark.parametrize("batch_size", [1, 4, 13, 64])
def test_every_image_counts_once_whatever_the_batch(
    batch_size: int, validation: Any
) -> None:
    model = BrightestChannel().train()
    score = scored(model, validation(batch_size), 3)
    # 13 images: five of class 0, four each of 1 and 2; 0 and 2 are taken for another.
    assert score.num_images == 13
    assert score.confusion.to_dense().tolist() == [[0, 0, 5], [0, 4, 0], [4, 0, 0]]
    assert score.top1 == pytest.approx(100 * 4 / 13)
    assert score.top5 == 100
    assert model.training
    numbers, labels, predicted = score.predictions.T.tolist()
    assert numbers == [*range(13)]
    assert [(2, 1, 0)[label] for label in labels] == predicted


def test_loss_is_the_mean_over_images(validation: Any) -> None:
    batches = validation(13)
    (batch,) = batches
    logits = BrightestChannel().eval()(AS_LEVELS(batch))
    expected = nn.functional.cross_entropy(logits, batch.labels)
    for size in (4, 13):
        score = scored(BrightestChannel(), validation(size), 3)
        assert score.loss == pytest.approx(float(expected), rel=1e-5)


def test_shares_of_two_processes_are_all_images(validation: Any) -> None:
    shares = [scored(BrightestChannel(), validation(4, rank, 2), 3) for rank in (0, 1)]
    assert sum(share.num_images for share in shares) == 13
    both = shares[0].confusion + shares[1].confusion
    assert both.to_dense().tolist() == [[0, 0, 5], [0, 4, 0], [4, 0, 0]]


def test_many_classes_take_no_table_of_all_pairs(validation: Any) -> None:
    num = 300_000  # whose pairs would take 720 GB
    model = BrightestChannel(num_others=num - 3)
    score = scored(model, validation(13), num)
    assert score.confusion.shape == (num, num)
    assert score.confusion.indices().T.tolist() == [[0, 2], [1, 1], [2, 0]]
    assert score.confusion.values().tolist() == [5, 4, 4]


def test_products_have_the_precision_asked_for(validation: Any) -> None:
    class Product(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            logits = super().forward(images.flatten(1))
            kinds.append(logits.dtype)
            return logits

    kinds: list[torch.dtype] = []
    for precision in (torch.float32, torch.bfloat16):
        model = Product(3 * 8 * 8, 3)
        score = scored(model, validation(13), 3, precision)
        assert score.num_images == 13
    assert kinds == [torch.float32, torch.bfloat16]


def test_nothing_to_evaluate_is_reported(validation: Any) -> None:
    class Nothing:
        def __iter__(self) -> Any:
            (batch,) = validation(13)
            yield batch._replace(valid=torch.zeros(13, dtype=torch.bool))

    with pytest.raises(UserError, match="all of them are damaged"):
        scored(BrightestChannel(), Nothing(), 3)  # type: ignore[arg-type]


def test_images_are_read_once_for_all_models(validation: Any) -> None:
    batches = validation(4)
    num_read = 0

    class Counted:
        def __iter__(self) -> Any:
            nonlocal num_read
            for batch in batches:
                num_read += 1
                yield batch

    models = {"one": BrightestChannel(), "other": BrightestChannel(2).train()}
    values = evaluate_models(
        models,
        Counted(),
        AS_LEVELS,
        score_classifier,
        ALONE,  # type: ignore[arg-type]
    )
    assert num_read == len(batches)
    for name, model in models.items():
        alone = evaluate(model, batches, AS_LEVELS, score_classifier, ALONE)
        assert alone.keys() == values[name].keys()
        for key, value in alone.items():
            assert torch.equal(value, values[name][key])
    assert models["other"].training
