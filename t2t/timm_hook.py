"""Registers our models with timm when timm is imported, without importing it."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def register_with_timm() -> None:
    """Registers now if timm is imported already, else right after its import."""
    if "timm" in sys.modules:
        register()
    elif not any(isinstance(finder, TimmFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TimmFinder())


def register() -> None:
    """Adds our models to timm's registry, as these modules do when they are imported.

    One that imports timm itself first is incomplete here, and does so at its end.
    """
    import t2t.models.timm_support.entry_points
    import t2t.models.timm_support.small_cnns  # noqa: F401


class TimmFinder(MetaPathFinder):
    """An import hook that registers our models after timm has been imported."""

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
            # Only once: the loader and the finders are restored.
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
        """The spec that the other finders return."""
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
        return None
