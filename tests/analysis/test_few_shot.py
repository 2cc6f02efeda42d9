"""Regularised least squares: closed form, choice of its penalty, and draws."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from t2t.analysis import few_shot
from t2t.analysis.few_shot import PENALTIES, draw_shots, least_squares_scores


def draw(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(num) % 3
    centres = torch.eye(3, 8)[labels]
    return 5 + 3 * (centres + torch.randn(num, 8, generator=generator)), labels


def reference(
    features: np.ndarray, labels: np.ndarray, queries: np.ndarray, penalty: float
) -> np.ndarray:
    """scikit-learn's ridge regression with an intercept, onto −1 and 1."""
    mean, scale = features.mean(0), np.sqrt(features.shape[1]) * features.std(0)
    ridge = Ridge(alpha=penalty).fit(
        (features - mean) / scale, 2.0 * np.eye(3)[labels] - 1
    )
    return np.asarray(ridge.predict((queries - mean) / scale))


@pytest.mark.parametrize("num", [6, 30], ids=["fewer than features", "more"])
@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_scores_are_scikit_learns(num: int, penalty: float) -> None:
    (features, labels), (queries, _) = draw(num, 0), draw(20, 1)
    scores = least_squares_scores(queries, features, labels, 3, penalty)
    given = (each.double().numpy() for each in (features, queries))
    features_64, queries_64 = given
    expected = reference(features_64, labels.numpy(), queries_64, penalty)
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-8)


def test_the_penalty_is_chosen_by_leaving_each_image_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = draw(15, 0)
    rows = features.double() - features.double().mean(0)
    rows /= rows.std(0, correction=0) * rows.shape[1] ** 0.5
    targets = 2.0 * torch.eye(3, dtype=torch.float64)[labels] - 1
    errors = {}
    for penalty in PENALTIES:
        left_out = []
        for index in range(15):
            kept = torch.arange(15) != index
            ridge = Ridge(alpha=penalty).fit(rows[kept].numpy(), targets[kept].numpy())
            guess = torch.from_numpy(ridge.predict(rows[index : index + 1].numpy()))
            left_out.append((guess - targets[index]).square().mean())
        errors[penalty] = float(torch.stack(left_out).mean())
    found: dict[float, float] = {}
    closed_form = few_shot._left_out_error

    def noted(*given: object) -> float:
        error = closed_form(*given)  # type: ignore[arg-type]
        found[given[3]] = error  # type: ignore[index]
        return error

    monkeypatch.setattr(few_shot, "_left_out_error", noted)
    chosen = least_squares_scores(features, features, labels, 3)
    assert found == pytest.approx(errors)
    best = min(errors, key=errors.__getitem__)
    given = least_squares_scores(features, features, labels, 3, best)
    torch.testing.assert_close(chosen, given)


def test_every_class_gets_so_many_images() -> None:
    labels = np.array([0] * 5 + [2] * 3 + [1] * 40)
    draws = [draw_shots(labels, 3, seed) for seed in range(5)]
    for drawn in draws:
        assert len({*drawn.tolist()}) == 9
        assert np.bincount(labels[drawn]).tolist() == [3, 3, 3]
    assert len({tuple(drawn) for drawn in draws}) == 5
    assert draw_shots(labels, 3, 0).tolist() == draws[0].tolist()
