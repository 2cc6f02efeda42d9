"""A server for the small model: in this process, at a port, and as a command."""

import asyncio
import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from t2t.serving.predictor import Predictor
from t2t.serving.server import gate
from t2t.serving.server.app import create_app
from t2t.serving.server.metrics import Metrics
from t2t.serving.server.options import ServerOptions
from t2t.serving.server.run import listen, make_server
from t2t.serving.server.service import Service

Encode = Callable[..., bytes]


@pytest.fixture(scope="session")
def encode() -> Encode:
    """A function that makes image files."""

    def encoded(kind: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
        pixels = bytes(7 * number % 256 for number in range(8 * 6 * 3))
        image = Image.frombytes("RGB", (8, 6), pixels).resize(size)
        file = io.BytesIO()
        image.save(file, kind)
        return file.getvalue()

    return encoded


@dataclass
class Local:
    """A service and a client of it in this process."""

    service: Service
    client: TestClient


@contextmanager
def local(predictor: Predictor, **options: Any) -> Iterator[Local]:
    service = Service(predictor, ServerOptions(**options), Metrics())
    app = create_app(service)
    try:
        with TestClient(app, base_url="http://localhost:8000") as client:
            yield Local(service, client)
    finally:
        service.close(5)


@pytest.fixture(scope="session")
def start_local() -> Callable[..., AbstractContextManager[Local]]:
    """Starts a service with other options."""
    return local


@pytest.fixture(scope="module")
def client(predictor: Predictor) -> Iterator[TestClient]:
    """A client of a server with small limits."""
    with local(predictor, max_upload_bytes=100_000, max_pixels=10**6) as found:
        yield found.client


@dataclass
class AtPort:
    """A server at a port of this machine."""

    service: Service
    port: int

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def exchange(self, request: bytes) -> bytes:
        """What it sends for these bytes, until it closes."""
        with self.connect() as connection:
            connection.sendall(request)
            return received(connection)


def received(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            data += piece
    return data


@contextmanager
def at_port(predictor: Predictor, **given: Any) -> Iterator[AtPort]:
    """A server in a thread, with the connections of the real one."""
    options = ServerOptions(**given)
    service = Service(predictor, options, Metrics())
    listener = listen("127.0.0.1", 0)
    started = threading.Event()
    server = make_server(create_app(service), options, started.set)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener]))
    )
    thread.start()
    try:
        assert started.wait(20)
        yield AtPort(service, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(20)
        service.close(5)
        listener.close()


@pytest.fixture(scope="session")
def start_at_port() -> Callable[..., AbstractContextManager[AtPort]]:
    """Starts a server with other options."""
    return at_port


@pytest.fixture(scope="module")
def server(predictor: Predictor) -> Iterator[AtPort]:
    """A server with short limits."""
    with (
        pytest.MonkeyPatch.context() as patch,
        at_port(
            predictor,
            header_seconds=0.5,
            stall_seconds=0.5,
            body_seconds=1.0,
            keep_alive_seconds=1,
            max_connections=30,
            max_upload_bytes=200_000,
        ) as server,
    ):
        patch.setattr(gate, "LINGER_SECONDS", 1.0)
        yield server
