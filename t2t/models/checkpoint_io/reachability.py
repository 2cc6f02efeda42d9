"""Checks quickly whether a server can be reached, where libraries would retry."""

import queue
import socket
import threading
import urllib.request
from urllib.parse import urlsplit

SECONDS = 4.0
"""Timeout of the check."""
PORTS = {"http": 80, "https": 443}


def why_unreachable(url: str) -> str | None:
    """Why a URL's server or proxy cannot be reached; None if it can.

    It connects in a thread, since DNS lookups have no timeout.
    """
    try:
        host, port = server_of(url)
    except ValueError as error:
        return str(error)
    answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=SECONDS).close()
            answers.put(None)
        except (OSError, UnicodeError) as error:
            answers.put(f"{host}: {getattr(error, 'strerror', None) or error}")

    threading.Thread(target=connect, daemon=True).start()
    try:
        return answers.get(timeout=SECONDS)
    except queue.Empty:
        return f"{host} did not answer within {SECONDS:g} s"


def server_of(url: str) -> tuple[str, int]:
    """The host and port that a request for a URL connects to."""
    parts = urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    if proxy and not urllib.request.proxy_bypass(host):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme="http")
    if not parts.hostname:
        raise ValueError("it has no host name")
    return parts.hostname, parts.port or PORTS.get(parts.scheme, 1080)
