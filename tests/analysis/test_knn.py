"""kNN agrees with a loop over the images."""

import math

import pytest
import torch
import torch.nn.functional as F

from t2t.analysis import knn
from t2t.analysis.knn import choose_k, knn_predict, nearest


@pytest.fixture(params=[1 << 26, 100], ids=["at once", "in parts"], autouse=True)
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "_SIMILARITIES_AT_ONCE", request.param)


def draw(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (num,), generator=generator)
    return torch.randn(num, 6, generator=generator) + 0.8 * F.one_hot(labels, 6), labels


def test_votes_are_weighted_by_similarity() -> None:
    (features, labels), (queries, _) = draw(50, 0), draw(30, 1)
    predicted = knn_predict(queries, features, labels, 4, [7, 1, 50])
    assert [*predicted] == [1, 7, 50]
    for k, found in predicted.items():
        for query, answer in zip(queries, found.tolist(), strict=True):
            similarity = [float(F.cosine_similarity(query, row, 0)) for row in features]
            order = sorted(range(50), key=lambda row: -similarity[row])[:k]
            votes = [0.0] * 4
            for row in order:
                votes[int(labels[row])] += math.exp(similarity[row] / 0.07)
            assert votes[answer] == pytest.approx(max(votes))


def test_the_nearest_come_first() -> None:
    (features, _), (queries, _) = draw(50, 0), draw(9, 1)
    similarities, indices = nearest(queries, 5 * features, 60)
    assert similarities.shape == indices.shape == (9, 50)
    expected = F.cosine_similarity(queries[:, None], features[None], dim=2)
    torch.testing.assert_close(similarities, expected.sort(descending=True).values)
    torch.testing.assert_close(expected.gather(1, indices), similarities)


def test_k_is_the_best_on_held_out_images() -> None:
    train, held_out = draw(60, 8), draw(200, 9)
    numbers = (1, 10, 60)
    predicted = knn_predict(held_out[0], *train, 4, numbers)
    correct = {k: int((each == held_out[1]).sum()) for k, each in predicted.items()}
    assert len({*correct.values()}) == 3
    assert choose_k(train, held_out, 4, (*numbers, 61)) == max(
        numbers, key=correct.__getitem__
    )
    few = train[0][:3], train[1][:3]
    assert choose_k(few, held_out, 4, (10, 20)) == 3
