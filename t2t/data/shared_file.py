"""Files without a name that another process of the same machine opens by an address."""

import errno
import os
import uuid

Address = tuple[str, bytes]
"""A path in /proc, and the token that the file begins with."""
TOKEN_BYTES = 16


def new_token() -> bytes:
    """The first bytes of a file, which no other file has."""
    return uuid.uuid4().bytes


def address_of(descriptor: int) -> Address:
    """What another process of this machine opens the file by."""
    token = os.pread(descriptor, TOKEN_BYTES, 0)
    return f"/proc/{os.getpid()}/fd/{descriptor}", token


def open_address(address: Address, flags: int) -> int:
    """A descriptor of the file; an OSError if it cannot be opened."""
    path, token = address
    # In another container the number is that of another file, such as a pipe.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        if os.pread(descriptor, TOKEN_BYTES, 0) != token:
            raise OSError(errno.ENOENT, "another file", path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
