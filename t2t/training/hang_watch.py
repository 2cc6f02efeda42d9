"""Notices a process that hangs, names it, and ends the run, so that it is restarted.

The others wait within a collective for a process that hangs. NCCL has a watchdog for
that, but it does not see collectives that are replayed from a CUDA graph.
"""

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.distributed import DistNetworkError

from t2t.training.distributed import World

EXIT_CODE = 75
"""A temporary failure: torchrun starts all processes again."""
MAX_SECONDS = 10.0
"""Longest time between two beats of a process."""
MONITORS = (0, 1)
"""The processes that watch all: the second watches the first."""
LOG_SECONDS = 5.0
"""How long a hanging disk may delay the end."""
LEAVE_SECONDS = 2.0
"""How long a store that does not answer may delay it."""


class Beat(NamedTuple):
    """A sign of life that a process writes into the store."""

    number: int
    step: int
    """The step that it has started last, from 1."""
    is_paused: bool
    """Whether it may take long: it evaluates, compiles or writes."""
    host: str


@dataclass
class Heard:
    """The last beat of a process, and when it came, by the watching process's clock."""

    beat: Beat
    at: float
    moved_at: float
    """When its step last changed."""

    def hear(self, beat: Beat, now: float) -> None:
        """Records a beat that was read from the store."""
        if beat.number != self.beat.number:
            self.at = now
        if beat[1:] != self.beat[1:]:
            self.moved_at = now
        self.beat = beat


class HangWatch:
    """Writes this process's beats into the store; the first two processes read all.

    A process hangs if it writes no beats, or starts no step while others have started
    it, for `limit` seconds. Evaluations, checkpoints and compiling may take longer.
    """

    def __init__(
        self, world: World, minutes: float, note: Callable[[str], None]
    ) -> None:
        self.world, self.limit, self.note = world, 60 * minutes, note
        self.interval = min(MAX_SECONDS, self.limit / 10)
        self.is_watching = bool(self.limit and world.store and world.size > 1)
        self.step, self.is_paused, self.count = 0, True, 0
        self.heard: dict[int, Heard] = {}
        self.answered_at = 0.0
        """When the store last answered."""
        self.ended = threading.Event()
        self.is_ending = False
        """Whether this process is reporting why the run ends."""

    def __enter__(self) -> "HangWatch":
        if self.is_watching:
            # A connection of its own: another thread may wait in the other one.
            self.store: Any = self.world.store.clone()
            self.answered_at = time.monotonic()
            self.beating = threading.Thread(target=self.keep_beating, daemon=True)
            self.beating.start()
            self.watching = threading.Thread(target=self.keep_watching, daemon=True)
            self.watching.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if not self.is_watching:
            return
        self.ended.set()
        if self.is_ending:
            self.watching.join(LOG_SECONDS + LEAVE_SECONDS)
        elif error is not None:  # perhaps that of a collective which others have left
            self.leave_if_hung()
        self.beating.join(LEAVE_SECONDS)

    def start_step(self, step: int) -> None:
        """Records that this process starts a step, counted from 1."""
        self.step, self.is_paused = step, False

    def pause(self) -> None:
        """Until the next step, this process may take as long as it needs."""
        self.is_paused = True

    def key(self, rank: int) -> str:
        """Where a process writes its beats."""
        return f"t2t/beat/{rank}"

    def keep_beating(self) -> None:
        """Writes beats and reads those of others, until the run ends."""
        is_over = False
        while not is_over:  # at once, so that each process is known from its start
            with suppress(RuntimeError):  # the store is gone, or late
                self.exchange()
                self.answered_at = time.monotonic()
            is_over = self.ended.wait(self.interval)
        with suppress(RuntimeError):
            self.store.set(self.key(self.world.rank), "")

    def exchange(self) -> None:
        """Writes a beat; the processes that watch read the others'."""
        self.count += 1
        beat = Beat(self.count, self.step, self.is_paused, platform.node())
        self.store.set(self.key(self.world.rank), json.dumps(beat))
        if self.world.rank in MONITORS:
            self.read_beats()
        if not self.is_ending:
            self.leave_if_hung()

    def leave_if_hung(self) -> None:
        """Ends this process if another one has reported why the run ends."""
        with suppress(RuntimeError):
            if self.store.check(["t2t/hung"]):
                leave()

    def read_beats(self) -> None:
        """Reads the beats of all processes that have written any."""
        ranks = [*self.heard]
        for rank in set(range(self.world.size)) - self.heard.keys():
            if self.store.check([self.key(rank)]):
                ranks.append(rank)
        found = self.store.multi_get([self.key(rank) for rank in ranks])
        now = time.monotonic()
        for rank, text in zip(ranks, found, strict=True):
            if not text:  # it has finished
                self.heard.pop(rank, None)
                continue
            beat = Beat(*json.loads(text))
            if rank in self.heard:
                self.heard[rank].hear(beat, now)
            else:
                self.heard[rank] = Heard(beat, now, now)

    def keep_watching(self) -> None:
        """Ends the run once a process hangs."""
        before = time.monotonic()
        while not self.ended.wait(self.interval):
            now = time.monotonic()
            if now - before > self.limit / 2:  # this process was stopped itself
                self.forgive(now)
            before = now
            reason = self.find_reason(now)
            if reason is not None and not self.ended.is_set():
                self.end(reason)

    def forgive(self, now: float) -> None:
        """Starts all times anew."""
        self.answered_at = now
        for each in self.heard.copy().values():
            each.at = each.moved_at = now

    def find_reason(self, now: float) -> str | None:
        """Why the run has to end; None if it goes on."""
        silent = now - self.answered_at
        if silent > 1.5 * self.limit:
            first = self.heard.get(0)
            where = "" if first is None else f" on {first.beat.host}"
            return (
                f"Process 0{where}, or the node of torchrun's store, has not answered "
                f"for {silent:,.0f} s"
            )
        if silent > self.limit / 2:  # what was heard last is old
            return None
        return hanging(self.heard.copy(), now, self.limit)

    def end(self, reason: str) -> None:
        """Reports once why the run ends, and ends this process at once."""
        self.is_ending = True
        speaks = self.world.rank in MONITORS
        if time.monotonic() - self.answered_at < self.limit:
            try:
                speaks = self.store.add("t2t/hung", 1) == 1
            except DistNetworkError:  # process 0 has just left, and has said why
                speaks = False
            except RuntimeError:  # the store is late
                pass
        if speaks:
            words = (
                f"{reason}, so this run ends. torchrun --max-restarts resumes it from "
                "the last checkpoint; else run the same command. --hang-minutes "
                "changes the limit."
            )
            print(words, file=sys.stderr, flush=True)
            writer = threading.Thread(target=self.note, args=(words,), daemon=True)
            writer.start()
            writer.join(LOG_SECONDS)
        leave()


def leave() -> None:
    """Ends this process at once: its main thread may never return."""
    os._exit(EXIT_CODE)


def hanging(heard: dict[int, Heard], now: float, limit: float) -> str | None:
    """The sentence about processes that hang, without its end; None if there are none.

    The process that has started the fewest steps hangs, not those that wait for it.
    """
    for rank, each in heard.items():
        if now - each.at > limit:
            return (
                f"{named([rank], heard)} has not answered for {now - each.at:,.0f} s, "
                f"since step {each.beat.step}"
            )
    if not heard:
        return None
    fewest = min(each.beat.step for each in heard.values())
    last = {rank: each for rank, each in heard.items() if each.beat.step == fewest}
    seconds = min(now - each.moved_at for each in last.values())
    if seconds <= limit or any(each.beat.is_paused for each in last.values()):
        return None
    if len(last) < len(heard):
        return (
            f"{named(last, heard)} did not start step {fewest + 1} for "
            f"{seconds:,.0f} s, while the others wait for it"
        )
    if seconds <= 1.5 * limit:  # the silence of one may explain it soon
        return None
    return (
        f"No process has finished step {fewest} for {seconds:,.0f} s: a GPU or the "
        "network hangs"
    )


def named(ranks: Iterable[int], heard: dict[int, Heard]) -> str:
    """Some processes with their hosts, in words."""
    words = [f"{rank} on {heard[rank].beat.host}" for rank in sorted(ranks)]
    kind = "Process" if len(words) == 1 else "Processes"
    others = f" and {len(words) - 4} more" if len(words) > 4 else ""
    return f"{kind} {', '.join(words[:4])}{others}"
