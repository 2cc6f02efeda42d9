"""Which process this is among those that torchrun started, as the environment says."""

import os

from t2t.errors import LocalError


def is_main() -> bool:
    """Whether this process speaks for all, for who cannot wait until they meet."""
    return os.environ.get("RANK", "0") == "0"


def num_told(name: str) -> int:
    """A number of processes that the environment tells; 1 where it tells none."""
    told = os.environ.get(name, "")
    return max(int(told), 1) if told.isdecimal() else 1


def read_environment_ranks() -> tuple[int, int, int, int]:
    """Rank and number of processes, in all and on this machine, as torchrun says."""
    told = os.environ
    try:
        world_size = int(told.get("WORLD_SIZE", 1))
        rank = int(told["RANK"] if world_size > 1 else told.get("RANK", 0))
        local_rank = int(told.get("LOCAL_RANK", 0))
        local_size = int(told.get("LOCAL_WORLD_SIZE", world_size))
        can_meet = world_size == 1 or (told["MASTER_ADDR"] and int(told["MASTER_PORT"]))
        is_counted = 0 <= rank < world_size and local_rank >= 0 < local_size
        if can_meet and is_counted:
            return rank, world_size, local_rank, local_size
    except (KeyError, ValueError):
        pass
    names = [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    ]
    found = ", ".join(f"{name}={told.get(name, 'unset')}" for name in names)
    raise LocalError(
        f"The environment has {found}, which is no process among others; start with "
        "torchrun, or unset all of them to train with one process."
    )
