"""Studies: each compares several recipes to answer a question."""

from collections.abc import Callable

from t2t.errors import UserError, suggest
from t2t.lab.studies.local import (
    local,
    photo_depth,
    photo_local,
    photo_networks,
    photo_tokens,
)
from t2t.lab.studies.networks import networks
from t2t.lab.studies.paper import (
    depth,
    designs,
    head,
    positions,
    token_transformer,
    tokens,
)
from t2t.lab.studies.study import Claim, Study

__all__ = ["STUDIES", "Claim", "Study", "find_study"]

STUDIES: dict[str, Callable[[], Study]] = {
    "tokens": tokens,
    "token_transformer": token_transformer,
    "depth": depth,
    "designs": designs,
    "head": head,
    "positions": positions,
    "networks": networks,
    "local": local,
    "photo_local": photo_local,
    "photo_tokens": photo_tokens,
    "photo_depth": photo_depth,
    "photo_networks": photo_networks,
}


def find_study(name: str) -> Study:
    """The study of that name."""
    if name not in STUDIES:
        raise UserError(f"There is no study {name!r}.{suggest(name, STUDIES)}")
    return STUDIES[name]()
