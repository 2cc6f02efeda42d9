"""Ctrl-C, SIGTERM and SIGHUP."""

import signal

import pytest

from t2t.training.stop_signals import StopSignals


def test_a_stop_before_the_first_step_is_obeyed_at_once() -> None:
    with StopSignals() as stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        reported: list[str] = []
        stop.defer(reported.append)
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
        assert stop.received
        (sentence,) = reported
        assert sentence.startswith("Stopping after this step, with a checkpoint;")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_closed_terminal_stops_a_run_unless_it_was_reported_to_outlive_it() -> None:
    reported: list[str] = []
    with StopSignals() as stop:
        stop.defer(reported.append)
        signal.raise_signal(signal.SIGHUP)
        assert stop.received
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopSignals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.received
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
