"""Mean attention distances equal a few-line reference."""

import pytest
import torch

from t2t.analysis.attention_distance import attention_distance, uniform_distance
from t2t.analysis.attention_maps import AttentionLayer


def a_layer(num_prefix: int, uniform: bool = False) -> AttentionLayer:
    num_tokens = num_prefix + 12
    logits = torch.randn(2, num_tokens, num_tokens)
    weights = (0 * logits if uniform else 2 * logits).softmax(-1)
    return AttentionLayer(
        name="block 1", grid=(3, 4), num_prefix=num_prefix, weights=weights
    )


@pytest.mark.parametrize("num_prefix", [0, 1, 2])
def test_distances_equal_a_reference(num_prefix: int) -> None:
    torch.manual_seed(num_prefix)
    layer = a_layer(num_prefix)
    places = [(8.0 * row, 16.0 * column) for row in range(3) for column in range(4)]
    expected = []
    for weights in layer.weights:
        of_queries = []
        for query, (row, column) in enumerate(places):
            seen = weights[num_prefix + query, num_prefix:]
            far = [((row - r) ** 2 + (column - c) ** 2) ** 0.5 for r, c in places]
            of_queries.append((seen * torch.tensor(far)).sum() / seen.sum())
        expected.append(torch.stack(of_queries).mean())
    found = attention_distance(layer, (24, 64))
    torch.testing.assert_close(found, torch.stack(expected))


def test_attention_to_all_alike_has_the_uniform_distance() -> None:
    found = attention_distance(a_layer(1, uniform=True), (24, 64))
    uniform = uniform_distance((3, 4), (24, 64))
    torch.testing.assert_close(found, torch.full((2,), uniform))


def test_attention_to_itself_has_no_distance() -> None:
    layer = AttentionLayer(
        name="block 1", grid=(3, 4), num_prefix=0, weights=torch.eye(12)[None]
    )
    assert attention_distance(layer, (24, 64)).item() == 0
