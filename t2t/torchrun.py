"""The rank and the number of processes, from torchrun's environment variables."""

import os

from t2t.errors import LocalError


def is_main() -> bool:
    """Whether this is the main process; needs no process group."""
    return os.environ.get("RANK", "0") == "0"


def env_count(name: str) -> int:
    """A number of processes in the environment; 1 if the variable is not set."""
    text = os.environ.get(name, "")
    return max(int(text), 1) if text.isdecimal() else 1


def read_environment_ranks() -> tuple[int, int, int, int]:
    """Rank, world size, local rank and local world size."""
    variables = os.environ
    try:
        world_size = int(variables.get("WORLD_SIZE", 1))
        rank = int(variables["RANK"] if world_size > 1 else variables.get("RANK", 0))
        local_rank = int(variables.get("LOCAL_RANK", 0))
        local_size = int(variables.get("LOCAL_WORLD_SIZE", world_size))
        has_master = world_size == 1 or (
            variables["MASTER_ADDR"] and int(variables["MASTER_PORT"])
        )
        is_valid = 0 <= rank < world_size and local_rank >= 0 < local_size
        if has_master and is_valid:
            return rank, world_size, local_rank, local_size
    except (KeyError, ValueError):
        pass
    names = [
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    ]
    found = ", ".join(f"{name}={variables.get(name, 'unset')}" for name in names)
    raise LocalError(
        f"The environment has {found}, which does not describe one of several "
        "processes; start with torchrun, or unset all of them to use one process."
    )
