"""The environment of several processes on this machine, as torchrun sets it."""

import socket


def environments(num_processes: int) -> list[dict[str, str]]:
    """The environment of each process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        for rank in range(num_processes)
    ]
