"""Nearest neighbours, compared with a loop over images."""

import math

import pytest
import torch

from t2t.tasks import knn
from t2t.tasks.knn import leave_one_out_knn


def test_other_images_vote_by_their_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "CHUNK", 7)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(50) % 3
    features = torch.randn(50, 8, generator=generator)
    features[:, :3] += 0.8 * torch.nn.functional.one_hot(labels, 3)
    found = leave_one_out_knn(features, labels)
    expected = []
    for one in range(50):
        votes = [0.0, 0.0, 0.0]
        cosines = [
            (torch.cosine_similarity(features[one], features[other], dim=0), other)
            for other in range(50)
            if other != one
        ]
        for cosine, other in sorted(cosines, reverse=True)[:20]:
            votes[labels[other]] += math.exp(cosine / 0.07)
        expected.append(votes.index(max(votes)) == labels[one].item())
    assert found.tolist() == expected
    assert 0.3 < found.float().mean() < 1


def test_few_and_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = torch.eye(4), torch.zeros(4, dtype=torch.int64)
    assert leave_one_out_knn(features[:1], labels[:1]).tolist() == [False]
    assert leave_one_out_knn(features[:2], labels[:2]).tolist() == [True, True]
    monkeypatch.setattr(knn, "MAX_IMAGES", 3)
    assert len(leave_one_out_knn(features, labels)) == 2
