"""Runs timm's own model tests for the models that we register with timm.

    python benchmarks/timm_suite.py pytorch-image-models [--only NAME …] [-- PYTEST …]

The first argument is a checkout of timm, whose `tests/test_models.py` is run as it is.
The tests select models by lists of names and modules, to which ours are added:
transformers (`vit_*`, `deit*`, …) are not tested for feature maps as CNNs are, models
with intermediate features are tested for them, and models that TorchScript cannot
compile (`hiera_*`, `hrnet*`, …) are not scripted.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm

import t2t
from t2t.models.timm_support.small_cnns import SMALL_CNNS
from t2t.models.zoo import CONFIGS

NAMES = [*CONFIGS, *SMALL_CNNS]
KNOWN_BY = {
    "vit_*": CONFIGS,
    "selecsls*": CONFIGS,
    "vision_transformer": ["entry_points"],
}
"""Entries of lists in timm's tests, and our names to add to those lists."""


def listed(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """timm's `list_models`, with our names added to its lists."""

    def list_models(filter: str | list[str] = "", **options: Any) -> list[str]:
        options["filter"] = filter
        for option, entries in options.items():
            if isinstance(entries, list):
                added = [KNOWN_BY[each] for each in entries if each in KNOWN_BY]
                options[option] = [*entries, *itertools.chain(*added)]
        return original(**options)

    return list_models


class OnlyOurs:
    """Deselects tests of models that are not ours."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        def is_ours(item: pytest.Item) -> bool:
            callspec = getattr(item, "callspec", None)
            return bool(callspec) and callspec.params.get("model_name") in self.names

        others = [each for each in items if not is_ours(each)]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if is_ours(each)]


def main() -> int:
    """Runs the suite and returns pytest's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path, help="a checkout of timm")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    timm.list_models = listed(timm.list_models)
    print(f"timm {timm.__version__}, t2t {t2t.__version__}, {len(options.only)} names")
    tests = options.checkout / "tests" / "test_models.py"
    return pytest.main(
        [str(tests), f"--rootdir={options.checkout}", "-q", *rest],
        plugins=[OnlyOurs(options.only)],
    )


if __name__ == "__main__":
    sys.exit(main())
