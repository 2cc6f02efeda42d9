"""Where processes meet: a store in which nothing of an earlier attempt can be read.

torchrun keeps one store over all restarts. A restarted process could read the address
of one that has died from it, and fail to reach it. So all agree on a fresh name first.
"""

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from t2t.errors import LocalError, ReportedError, UserError, first_line

POLL_SECONDS = 0.02
PARTINGS = ("closed by peer", "reset by peer", "Broken pipe")
"""What gloo says of a process that has gone."""


def rendezvous_store(rank: int, world_size: int, seconds: float = 300) -> Store:
    """A store for this attempt alone, in torchrun's or in the first process's."""
    is_kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = TCPStore(
            address,
            port,
            is_master=rank == 0 and not is_kept,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise LocalError(
            f"Process {rank} of {world_size} cannot meet the others at {address}, port "
            f"{port} ({first_line(error)}); give another MASTER_ADDR or MASTER_PORT, "
            "or start with torchrun."
        ) from error
    return PrefixStore(agree(store, rank, world_size, seconds), store)


@contextmanager
def report_error_once(store: Store) -> Iterator[None]:
    """Lets the first process that meets a mistake tell it; the others end quietly."""
    try:
        yield
    except KeyboardInterrupt:
        count_mistakes(store, 1)
        raise
    except UserError as error:
        is_first = count_mistakes(store, 1) == 1
        raise (LocalError if is_first else ReportedError)(str(error)) from error
    except Exception as error:
        # What all do together fails in the others when one has left.
        parted = is_peer_lost(error)
        if count_mistakes(store, parted) > parted:
            raise ReportedError("Another process has ended, and told why.") from error
        if not parted:
            raise
        raise LocalError(
            "Another process of this run is gone, killed or by an error of its own; "
            "the same command goes on from the last checkpoint."
        ) from error


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error tells no more than that another process has gone."""
    said = str(error)
    return "gloo" in said and any(words in said for words in PARTINGS)


def count_mistakes(store: Store, more: int) -> int:
    """How many processes have ended by a mistake, with so many more."""
    try:
        return store.add("t2t/mistakes", more)
    except RuntimeError:  # the first process kept the store, and is gone
        return more


def agree(store: Store, rank: int, world_size: int, seconds: float) -> str:
    """A name that the living processes of this attempt share, and no earlier ones.

    Each writes a new word. The first lists the words until every process has confirmed
    a list with its own word in it, which no process of an earlier attempt can.
    """
    word = uuid.uuid4().hex
    store.set(f"t2t/word/{rank}", word)
    words = [f"t2t/word/{other}" for other in range(world_size)]
    confirmations = [f"t2t/confirmed/{other}" for other in range(1, world_size)]
    listed: list[str] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0 and store.check(words):
            listed = [told.decode() for told in store.multi_get(words)]
            store.set("t2t/list", json.dumps(listed))
            name = name_of(listed)
            if store.check(confirmations) and all(
                told.decode() == name for told in store.multi_get(confirmations)
            ):
                store.set("t2t/agreed", name)
                return name
        elif rank > 0 and store.check(["t2t/list"]):
            listed = json.loads(store.get("t2t/list"))
            if len(listed) == world_size and listed[rank] == word:
                name = name_of(listed)
                store.set(f"t2t/confirmed/{rank}", name)
                agreed = store.check(["t2t/agreed"])
                if agreed and store.get("t2t/agreed").decode() == name:
                    return name
        time.sleep(POLL_SECONDS)
    raise LocalError(
        f"Process {rank} of {world_size} waited {seconds:g} s for the others in vain; "
        "look for an error in their logs."
    )


def name_of(words: list[str]) -> str:
    """One short name for a list of words."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
