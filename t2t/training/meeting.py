"""Where processes meet: a store in which nothing of an earlier attempt can be read.

torchrun keeps one store over all restarts. A restarted process could read the address
of one that has died from it, and fail to reach it. So all agree on a fresh name first.
"""

import hashlib
import json
import os
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from t2t.errors import LocalError

POLL_SECONDS = 0.02


def meeting_store(rank: int, world_size: int, seconds: float = 300) -> Store | None:
    """A store for this attempt of torchrun alone; None where torchrun keeps none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
        return None
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=seconds),
    )
    return PrefixStore(agree(store, rank, world_size, seconds), store)


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
