"""Logistic regression agrees with scikit-learn's."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from t2t.analysis import linear_probe
from t2t.analysis.linear_probe import choose_penalty, fit_linear_probe
from t2t.errors import UserError

Labelled = tuple[Tensor, Tensor]


def clusters(num: int, seed: int, spread: float = 2.0) -> Labelled:
    """Overlapping clusters of five classes; one feature is constant."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 12, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(num) % 5
    noise = spread * torch.randn(num, 12, generator=generator)
    features = (centres[labels] + noise) * torch.logspace(-2, 2, 12)
    return torch.cat([features, torch.full((num, 1), 7.0)], 1), labels


@pytest.mark.parametrize("penalty", [1e-1, 1e-3])
def test_probabilities_are_scikit_learns(penalty: float) -> None:
    features, labels = clusters(400, 0)
    others, _ = clusters(100, 1)
    fitted = fit_linear_probe(features, labels, 5, penalty)
    mean, std = features.mean(0), features.std(0, correction=0)
    std[-1] = 1.0
    reference = LogisticRegression(C=1 / (penalty * 400), tol=1e-8, max_iter=5000)
    reference.fit(((features - mean) / std).double().numpy(), labels.numpy())
    rows = ((others - mean) / std).double().numpy()
    expected = torch.from_numpy(reference.predict_proba(rows)).float()
    torch.testing.assert_close(
        fitted.logits(others).softmax(1), expected, atol=1e-3, rtol=0
    )
    torch.testing.assert_close(
        fitted.weights[:-1].T,
        torch.from_numpy(reference.coef_).float(),
        atol=2e-3,
        rtol=0,
    )
    assert (fitted.predict(others) == expected.argmax(1)).float().mean() >= 0.99


def test_parts_of_the_images_make_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features, labels = clusters(90, 0)
    whole = fit_linear_probe(features, labels, 5, 1e-2)
    monkeypatch.setattr(linear_probe, "_LOGITS_AT_ONCE", 5 * 7)
    parts = fit_linear_probe(features, labels, 5, 1e-2)
    torch.testing.assert_close(parts.weights, whole.weights, atol=1e-3, rtol=0)
    assert parts.predict(features).tolist() == whole.predict(features).tolist()


def test_the_penalty_is_that_of_the_best_accuracy() -> None:
    train, held_out = clusters(60, 0), clusters(500, 1)
    penalties = (10.0, 1e-1, 1e-3)
    accuracies = {
        penalty: (fit_linear_probe(*train, 5, penalty).predict(held_out[0]))
        .eq(held_out[1])
        .sum()
        .item()
        for penalty in penalties
    }
    assert len({*accuracies.values()}) == 3
    best = max(penalties, key=accuracies.__getitem__)
    assert choose_penalty(train, held_out, 5, penalties) == best
    assert choose_penalty(train, held_out, 5, penalties[::-1]) == best
    with pytest.raises(UserError, match="no penalties"):
        choose_penalty(train, held_out, 5, ())


def test_the_search_ends_after_a_few_penalties_without_a_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []

    def fit(*given: object) -> object:
        tried.append(given[3])  # type: ignore[arg-type]
        return fit_linear_probe(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(linear_probe, "fit_linear_probe", fit)
    easy = clusters(50, 0, spread=0.01)
    assert choose_penalty(easy, easy, 5, (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)) == 1e-1
    assert tried == [1e-1, 1e-2, 1e-3, 1e-4]
