"""The tree of a model's parts."""

import pytest

from t2t.analysis.summary import Branch, describe, merged, part_tree, walk


def costs(branch: Branch) -> list[tuple[int, int]]:
    """Parameters and multiplications of what a branch holds."""
    return [(inner.part.parameters, inner.part.macs) for inner in branch.inside]


def activations(branch: Branch) -> list[int]:
    """Bytes of all branches at each depth."""
    level, found = [branch], []
    while level:
        found.append(sum(each.part.activation_bytes for each in level))
        level = [inner for each in level for inner in each.inside]
    return found


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        # Of two blocks, one alone holds what drops it.
        ("resnet18_32", {"drop_path": 0.1}),
        # Of blocks that cost the same, some hold qkv and some q and kv.
        ("twins_svt_small", {}),
        ("t2t_vit_dense", {"drop_path": 0.1}),
        # All of its blocks are alike.
        ("t2t_vit_7", {}),
    ],
)
def test_siblings_are_merged_where_they_hold_the_same(
    name: str, choices: dict[str, float]
) -> None:
    page = describe(name, choices)
    apart = part_tree(page.cost.parts)
    tree = merged(apart)
    assert activations(tree) == activations(apart)
    for _, branch in walk(tree, depth=9):
        assert not branch.is_free
        if branch.inside:
            parameters, macs = map(sum, zip(*costs(branch), strict=True))
            assert parameters == branch.part.parameters
            assert macs <= branch.part.macs
