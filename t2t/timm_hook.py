"""Registers our models with timm as soon as timm is there, without importing it."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def register_with_timm() -> None:
    """Registers at once if timm is imported, else right after it will be."""
    if "timm" in sys.modules:
        register()
    elif not any(isinstance(finder, TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TimmFinder())


def register() -> None:
    """Adds our models to timm's registry."""
    from t2t.models.small_cnns import register as register_small_cnns
    from t2t.models.timm_entry import register as register_models

    register_models()
    register_small_cnns()


class TimmFinder(MetaPathFinder):
    """Finds timm where the usual finders do, and registers our models once it ran."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != "timm":
            return None
        spec = self.usual_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader, run = spec.loader, spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            # The work is done once: loader and finders are left as they were found.
            del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            run(module)
            register()

        loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec

    def usual_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
    ) -> ModuleSpec | None:
        """What the other finders find; a look without an import changes nothing."""
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None
