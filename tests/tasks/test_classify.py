"""Classification: class weights in the loss, macro accuracy, mirror images."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score
from torch import Tensor, nn

from t2t.data.augment.config import Augmentation
from t2t.data.rng import CounterRng
from t2t.errors import UserError
from t2t.tasks.base import TaskContext
from t2t.tasks.classify import Classify, flipped_logits, macro_accuracy, score_logits
from t2t.training.check_names import check_names
from t2t.training.recipe import Recipe

WEIGHTS = (0.5, 3.0, 1.0)


def task_of(model: nn.Module, **context: Any) -> Classify:
    return Classify(model, TaskContext(num_classes=3, **context), None)


@pytest.mark.parametrize("mixup", [0.0, 0.8])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights_are_those_of_torchs_cross_entropy(
    mixup: float, smoothing: float
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 3))
    pixels = torch.randint(0, 256, (8, 3, 4, 4), dtype=torch.uint8)
    labels = torch.arange(8) % 3
    config = Augmentation(mixup=mixup, smoothing=smoothing)
    found = {}
    for weights in ((), WEIGHTS):
        task = task_of(model, class_weights=weights)
        rng = CounterRng.of(0, 0, torch.arange(8))
        views = task.views((pixels,), labels, rng, config)
        found[weights] = views, task(views)["loss"]
    plain, _ = found[()]
    expected = F.cross_entropy(
        model(plain["images"]), plain["targets"], weight=torch.tensor(WEIGHTS)
    )
    torch.testing.assert_close(found[WEIGHTS][1], expected)
    assert found[WEIGHTS][1] != found[()][1]


def test_weights_are_no_part_of_a_checkpoint() -> None:
    task = task_of(nn.Flatten(), class_weights=WEIGHTS)
    assert task.class_weights is not None
    assert "class_weights" not in task.state_dict()
    assert task_of(nn.Flatten()).class_weights is None


def test_macro_accuracy_is_scikit_learns_balanced_accuracy() -> None:
    torch.manual_seed(0)
    labels = torch.tensor([0] * 30 + [1] * 5 + [4] * 2)  # 2 and 3 do not occur
    predicted = torch.where(torch.rand(37) < 0.6, labels, torch.randint(0, 5, (37,)))
    with pytest.warns(UserWarning, match="not in y_true"):
        expected = balanced_accuracy_score(labels, predicted)
    assert macro_accuracy(labels, predicted) == pytest.approx(100 * expected)
    task = task_of(nn.Flatten())
    values = {
        "label": labels,
        "predicted": predicted,
        "top1": 100.0 * (labels == predicted),
        "top5": torch.ones(37),
        "val_loss": torch.ones(37),
    }
    assert task.summarize(values)["macro_accuracy"] == pytest.approx(100 * expected)


def test_flips_average_probabilities() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 3))
    images = torch.randn(5, 3, 4, 4)
    both: list[Tensor] = [model(each).softmax(1) for each in (images, images.flip(3))]
    averaged = flipped_logits(model, images).softmax(1)
    torch.testing.assert_close(averaged, (both[0] + both[1]) / 2)
    torch.testing.assert_close(
        flipped_logits(model, images.flip(3)).softmax(1), averaged
    )
    scored = score_logits(flipped_logits(model, images), torch.zeros(5).long())
    torch.testing.assert_close(scored["label_probability"], averaged[:, 0])


@pytest.mark.parametrize(
    ("task", "balance", "sentence"),
    [
        ("simclr", "sampling", "task=simclr does not learn one class per image"),
        ("masked_patches", "weights", "nothing to balance; leave out --balance"),
        ("plain", "weights", "no class weights in its loss; use --balance sampling"),
    ],
)
def test_tasks_that_cannot_balance_say_so(
    task: str, balance: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe(name="x", model="t2t_vit_7_32", balance=balance, task="classify")  # type: ignore[arg-type]
    check_names(recipe)
    if task == "plain":
        monkeypatch.setattr(Classify, "balanced_by", ("sampling",))
    else:
        recipe = Recipe(name="x", model="t2t_vit_7_32", balance=balance, task=task)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence):
        check_names(recipe)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"balance": "oversampling"}, "balance"),
        ({"balance_power": 0.0}, "balance_power=0"),
        ({"balance_power": 1.5}, "balance_power=1.5"),
        ({"patience": 0}, "patience=0"),
        ({"keep": "first"}, "keep"),
        ({"fold": (3, 2)}, r"fold\[0\]"),
        ({"fold": (1, 1)}, r"fold\[1\]"),
    ],
)
def test_values_out_of_range_are_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Recipe(name="x", model="t2t_vit_7_32", **settings)
