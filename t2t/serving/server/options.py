"""What the server allows: sizes, times and numbers."""

from dataclasses import dataclass

MEGABYTE = 10**6
DEFAULT_MAX_PIXELS = 1 << 26
"""Pixels of one upload; phones take pictures of 12 to 50 million."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Limits of a server. The defaults suit one machine and a few hundred clients."""

    token: str | None = None
    """What a request has to send; None accepts every request."""
    hosts: tuple[str, ...] = ()
    """Names of this server beside addresses and localhost."""
    access_log: bool = False

    max_upload_bytes: int = 20 * MEGABYTE
    max_pixels: int = DEFAULT_MAX_PIXELS
    max_batch: int = 16
    max_wait_ms: float = 5.0
    """How long the first image of a batch waits for others."""
    queue_size: int = 64
    """Images that are decoded, wait or are computed; further ones get a 503."""

    max_explanations: int = 4
    """Explanations at the same time."""
    max_connections: int = 512
    max_header_bytes: int = 16_384
    header_seconds: float = 10.0
    """From the first byte of a request, or a new connection, to the last header."""
    stall_seconds: float = 10.0
    """Without any byte of a body, or without the client reading the reply."""
    body_seconds: float = 60.0
    keep_alive_seconds: int = 15

    @property
    def max_held_bytes(self) -> int:
        """Bytes of all uploads in memory together."""
        return 16 * self.max_upload_bytes
