"""Set before torch is imported, for every test."""

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Some virtual machines advertise AMX but trap on it, which kills bfloat16 products.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Tensors here are small: more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# ONNX Runtime, which some tests import themselves, would report its usage.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Shells start what runs in their background with Ctrl-C ignored, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The same for nohup and the closing of a terminal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples every time: a failure is then the change's, not the day's.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests of CUDA on a machine without it."""
    marked = [item for item in items if item.get_closest_marker("cuda")]
    if marked:
        import torch  # slow, and most files of tests need no CUDA

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module", autouse=True)
def little_garbage() -> None:
    """Garbage is searched for less often, and not in what is there before a module."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_unconfigure() -> None:
    """Lets Python free everything at its end: libraries would report it as leaked."""
    gc.unfreeze()


CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium without a window; the tests that need it are skipped without one."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
