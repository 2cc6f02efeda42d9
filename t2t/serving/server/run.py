"""Runs the server: its address, its signals, its start and end."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from dataclasses import replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from t2t.errors import UserError
from t2t.serving.predictor import Predictor
from t2t.serving.server.app import create_app
from t2t.serving.server.metrics import Metrics
from t2t.serving.server.options import ServerOptions
from t2t.serving.server.protocol import guarded
from t2t.serving.server.service import Service

GRACE_SECONDS = 1
"""Time for requests in progress to end, once the server is asked to stop."""
CLOSE_SECONDS = 0.5
"""What the threads have to end after that."""

FILES_FOR_OTHERS = 64
"""Open files that are not connections."""


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, which listens once the server runs."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"--host {host} is not an address or a name of this machine; give "
            "127.0.0.1 for this machine alone, or 0.0.0.0 for the network."
        ) from None
    # localhost is often both; most programs try the older kind first.
    family, kind, protocol, _, address = min(
        found, key=lambda each: each[0] != socket.AF_INET
    )
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would share a port in use
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(0)  # else a second server could bind the port meanwhile
    except OSError as error:
        listener.close()
        raise refused(host, port, error) from error
    return listener


def refused(host: str, port: int, error: OSError) -> UserError:
    """Why an address cannot be used."""
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"Port {port} is in use by another program: give another with --port, or 0 "
            "for any free one."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UserError(
            f"--host {host} is not an address of this machine; give 127.0.0.1 for this "
            "machine alone, or 0.0.0.0 for the network."
        )
    if error.errno == errno.EACCES:
        return UserError(
            f"Port {port} needs an administrator's rights: give one from 1024 with "
            "--port."
        )
    return UserError(
        f"--host {host} --port {port} cannot be used ({os.strerror(error.errno or 0)})."
    )


def is_local(listener: socket.socket) -> bool:
    """Whether only programs of this machine reach the address."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """The address of the page, as seen from this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "localhost"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def most_connections(wanted: int) -> int:
    """As many connections as this process may open files for."""
    try:
        import resource
    except ImportError:  # Windows
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(min(wanted, soft - FILES_FOR_OTHERS), 1)


class Server(uvicorn.Server):
    """uvicorn's server, which ends without raising its signals again."""

    def __init__(self, config: uvicorn.Config, say_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.say_ready = say_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Says when clients and signals are served."""
        await super().startup(sockets)
        self.say_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Ends on Ctrl-C, SIGTERM, and where the terminal closes."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP"):
            numbers.append(signal.SIGHUP)
        before = {number: signal.getsignal(number) for number in numbers}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN or number != signal.SIGHUP:  # nohup
                signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends once requests in progress are done; at once if asked twice."""
        self.force_exit = self.should_exit
        self.should_exit = True


def run(
    predictor: Predictor,
    listener: socket.socket,
    options: ServerOptions,
    say_ready: Callable[[], None],
) -> None:
    """Serves a model until Ctrl-C."""
    options = replace(
        options, max_connections=most_connections(options.max_connections)
    )
    service = Service(predictor, options, Metrics())
    try:
        service.warm_up()
        server = make_server(create_app(service), options, say_ready)
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        service.close(CLOSE_SECONDS)


def make_server(
    app: ASGIApp, options: ServerOptions, say_ready: Callable[[], None]
) -> Server:
    """uvicorn's server with these limits."""
    config = uvicorn.Config(
        app,
        http=guarded(options),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=options.keep_alive_seconds,
        timeout_graceful_shutdown=GRACE_SECONDS,
        h11_max_incomplete_event_size=options.max_header_bytes,
    )
    return Server(config, say_ready)


def leave() -> None:
    """Ends the program at once.

    Python would wait for threads that still decode, and take seconds to clear PyTorch.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
