"""CUDA starts in a thread while the command goes on."""

import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

from t2t.training import distributed, start_cuda
from t2t.training.switch_interval import switch_as_usual


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_cuda, "feeds_gpu", lambda _: False)
    assert start_cuda.start_cuda_early(None) is None


def test_a_device_that_is_missing_is_left_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_cuda, "feeds_gpu", lambda _: True)
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    thread = start_cuda.start_cuda_early("cuda:77")
    assert thread is not None
    thread.join()
    switch_as_usual()
    assert not raised


def test_each_part_is_left_out_once_the_program_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, "find_device", lambda *_: torch.device("cuda"))
    is_over, called = threading.Event(), []
    for name in ("create_context", "load_triton", "draw_numbers"):

        def part(device: torch.device, name: str = name) -> None:
            called.append(name)
            if name == "load_triton":
                is_over.set()

        monkeypatch.setattr(start_cuda, name, part)
    start_cuda.start_cuda(None, is_over)
    assert called == ["create_context", "load_triton"]


WORKING = """
import sys
import torch
from t2t import cli
from t2t.training import start_cuda

def work(device, is_over):
    while True:
        torch.zeros(256, 256).clone()

start_cuda.feeds_gpu = lambda device: True
start_cuda.start_cuda = work

def main():
    start_cuda.start_cuda_early(None)
    print("No recipe has this name.")
    return 2

cli.main = main
from t2t.__main__ import main
sys.exit(main())
"""


def test_a_command_that_fails_early_exits_while_the_thread_works() -> None:
    """Python would abort: the thread is within an operation of PyTorch."""
    found = subprocess.run(
        [sys.executable, "-c", WORKING], capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (2, "")
    assert found.stdout == "No recipe has this name.\n"


def test_what_cublas_reads_once_is_set_before_the_first_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch keeps the first size of its workspace, which decides the last bits."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    find_device, found = distributed.find_device, []

    def find(*given: Any) -> torch.device:
        find_device("cpu")
        return torch.device("cuda")

    monkeypatch.setattr(distributed, "find_device", find)
    for part in ("create_context", "load_triton", "draw_numbers", "load_tensorboard"):
        monkeypatch.setattr(
            start_cuda, part, lambda device: found.append(os.environ.get(name))
        )
    start_cuda.start_cuda(None, threading.Event())
    assert found == [":4096:8"] * 4


def test_numbers_are_drawn_on_any_device() -> None:
    start_cuda.draw_numbers(torch.device("cpu"))


@pytest.mark.cuda
def test_the_context_is_there_when_the_thread_ends() -> None:
    thread = start_cuda.start_cuda_early("cuda")
    assert thread is not None
    thread.join()
    switch_as_usual()
    assert torch.cuda.is_initialized()


def test_threads_switch_often_until_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sys.getswitchinterval()
    monkeypatch.setattr(start_cuda, "feeds_gpu", lambda _: True)
    thread = start_cuda.start_cuda_early("cuda:77")
    assert thread is not None
    thread.join()
    assert sys.getswitchinterval() < before
    switch_as_usual()
    assert sys.getswitchinterval() == before
