"""Rendezvous: a store that holds nothing of an earlier attempt.

torchrun keeps one store over all restarts. A restarted process could read the address
of a process that has died, and fail to reach it. So processes first agree on a prefix.
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
WAIT_SECONDS = 300.0
"""How long a process waits for the others to start."""
DISCONNECTED = ("closed by peer", "reset by peer", "Broken pipe")
"""Parts of gloo's messages about a process that is gone."""


def rendezvous_store(rank: int, world_size: int) -> Store:
    """A store for this attempt only, within torchrun's store or that of process 0."""
    has_agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        store = TCPStore(
            address,
            port,
            is_master=rank == 0 and not has_agent_store,
            timeout=timedelta(seconds=WAIT_SECONDS),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise LocalError(
            f"Process {rank} of {world_size} cannot connect to {address}, port {port} "
            f"({first_line(error)}); give another MASTER_ADDR or MASTER_PORT, "
            "or start with torchrun."
        ) from error
    return PrefixStore(agree_on_prefix(store, rank, world_size, WAIT_SECONDS), store)


@contextmanager
def report_error_once(store: Store) -> Iterator[None]:
    """Makes only the first process that fails report its error."""
    try:
        yield
    except KeyboardInterrupt:
        count_errors(store, 1)
        raise
    except UserError as error:
        is_first = count_errors(store, 1) == 1
        raise (LocalError if is_first else ReportedError)(str(error)) from error
    except Exception as error:
        # Collectives fail in the other processes when one has exited.
        peer_lost = is_peer_lost(error)
        if count_errors(store, peer_lost) > peer_lost:
            raise ReportedError("Another process failed and reported why.") from error
        if not peer_lost:
            raise
        raise LocalError(
            "Another process of this run was killed or failed; run the same command to "
            "resume from the last checkpoint."
        ) from error


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error only means that another process is gone."""
    message = str(error)
    return "gloo" in message and any(words in message for words in DISCONNECTED)


def count_errors(store: Store, more: int) -> int:
    """Adds to the number of processes that ended with an error; returns it."""
    try:
        return store.add("t2t/errors", more)
    except RuntimeError:  # process 0, which hosted the store, is gone
        return more


def agree_on_prefix(store: Store, rank: int, world_size: int, seconds: float) -> str:
    """A store prefix that only the processes of this attempt share.

    Each writes a random word. Process 0 lists the words until every process has
    confirmed a list with its own word, which no process of an earlier attempt can.
    """
    word = uuid.uuid4().hex
    store.set(f"t2t/word/{rank}", word)
    words = [f"t2t/word/{other}" for other in range(world_size)]
    confirmations = [f"t2t/confirmed/{other}" for other in range(1, world_size)]
    listed: list[str] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if rank == 0 and store.check(words):
            listed = [each.decode() for each in store.multi_get(words)]
            store.set("t2t/list", json.dumps(listed))
            name = name_of(listed)
            if store.check(confirmations) and all(
                each.decode() == name for each in store.multi_get(confirmations)
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
        f"Process {rank} of {world_size} waited {seconds:g} s for the others; check "
        "their logs for errors."
    )


def name_of(words: list[str]) -> str:
    """One short name for a list of words."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
