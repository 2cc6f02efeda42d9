"""Whether a server can be reached, asked before a library would try again and again."""

import queue
import socket
import threading
import urllib.request
from urllib.parse import urlsplit

SECONDS = 4.0
"""After which a server that does not answer counts as out of reach."""
PORTS = {"http": 80, "https": 443}


def why_unreachable(url: str) -> str | None:
    """Why a URL's server, or the proxy before it, is out of reach; None if it is not.

    In a thread, since looking up a name has no time limit of its own.
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
        raise ValueError("it names no server")
    return parts.hostname, parts.port or PORTS.get(parts.scheme, 1080)
