"""Shared by tests of kernels."""

from importlib.metadata import PackageNotFoundError, version

import pytest


@pytest.fixture(scope="session")
def interpreter() -> None:
    """Skips where Triton's interpreter fails with the NumPy that is installed."""
    try:
        triton = tuple(map(int, version("triton").split(".")[:2]))
    except PackageNotFoundError:
        return
    numpy = tuple(map(int, version("numpy").split(".")[:2]))
    if triton < (3, 7) and numpy >= (2, 5):
        pytest.skip(f"Triton {triton} cannot interpret kernels with NumPy {numpy}")
