"""Slow, broken, impolite and many connections, at a real port."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from select import select
from typing import Any

import pytest
import torch

from t2t.serving.predictor import Predictor

Encode = Callable[..., bytes]


def post(port: int, content: bytes, path: str = "/predict") -> tuple[int, Any]:
    """Status and reply of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, content)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def head(length: int, path: str = "/predict", more: str = "") -> bytes:
    """The head of a request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
        f"{more}\r\n"
    ).encode()


def status_and_error(reply: bytes) -> tuple[int, str]:
    """The status of a refusal, and its sentence."""
    first, _, body = reply.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(body)["error"]


def received(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    data = b""
    try:
        while piece := connection.recv(65_536):
            data += piece
    except ConnectionError:
        pass
    return data


def is_idle(server: Any) -> bool:
    """Whether the server holds nothing, after a moment."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if server.service.num_inside == 0 and server.service.held.num == 0:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """Closes connections after a test, whatever became of it."""
    with ExitStack() as stack:
        yield stack


def test_several_requests_use_one_connection(server: Any, encode: Encode) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    for content, status in ((encode(), 200), (b"text", 415), (encode("JPEG"), 200)):
        connection.request("POST", "/predict", content)
        response = connection.getresponse()
        reply = json.loads(response.read())
        assert response.status == status, reply
        socket_now = connection.sock
        assert socket_now is not None  # not closed by either side
    connection.close()


def test_requests_at_the_same_time_share_batches(
    start_at_port: Any, predictor: Predictor, encode: Encode
) -> None:
    images = [encode("PNG", (20 + number, 30)) for number in range(12)]
    alone = [predictor.predict(image, top=6)[0].classes for image in images]
    with (
        start_at_port(predictor, max_batch=4, max_wait_ms=300) as server,
        ThreadPoolExecutor(12) as clients,
    ):
        tops = [1 + number % 6 for number in range(12)]
        paths = [f"/predict?top={top}" for top in tops]
        replies = list(clients.map(post, [server.port] * 12, images, paths))
    for (status, reply), expected, top in zip(replies, alone, tops, strict=True):
        assert status == 200
        found = [(each["index"], each["probability"]) for each in reply["predictions"]]
        assert found == [
            (each.index, pytest.approx(each.probability, abs=1e-5))
            for each in expected[:top]
        ]
    sizes = [reply["batch_size"] for _, reply in replies]
    assert max(sizes) == 4
    assert len([size for size in sizes if size == 4]) >= 8


class SlowModel(torch.nn.Module):
    """A model that waits until it may compute."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model = predictor.model
        self.may_compute = threading.Event()
        self.num_images: list[int] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.may_compute.wait(20)
        self.num_images.append(len(images))
        result: torch.Tensor = self.model(images)
        return result


@pytest.fixture
def slow(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> SlowModel:
    model = SlowModel(predictor)
    monkeypatch.setattr(predictor, "model", model)
    return model


def test_a_full_queue_answers_503(
    start_at_port: Any, predictor: Predictor, slow: SlowModel, encode: Encode
) -> None:
    with (
        start_at_port(predictor, queue_size=3, max_batch=1) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        waiting = [clients.submit(post, server.port, encode()) for _ in range(3)]
        until = time.monotonic() + 10
        while server.service.num_inside < 3 and time.monotonic() < until:
            time.sleep(0.01)
        reply = server.exchange(head(10**6, more="Connection: close\r\n"))
        status, sentence = status_and_error(reply)
        assert status == 503
        assert "busy (3 images are waiting): try again in 1 s" in sentence
        assert b"\r\nretry-after: 1\r\n" in reply.lower()
        slow.may_compute.set()
        assert [each.result()[0] for each in waiting] == [200] * 3
        assert post(server.port, encode())[0] == 200
        assert is_idle(server)


def test_too_many_explanations_answer_503(
    start_at_port: Any, predictor: Predictor, slow: SlowModel, encode: Encode
) -> None:
    with (
        start_at_port(predictor, max_explanations=2) as server,
        ThreadPoolExecutor(4) as clients,
    ):
        asked = [
            clients.submit(post, server.port, encode(), "/explain") for _ in range(4)
        ]
        requests = server.service.metrics.requests
        until = time.monotonic() + 10
        while requests["/explain", 503] < 2 and time.monotonic() < until:
            time.sleep(0.01)
        slow.may_compute.set()
        statuses = sorted(each.result()[0] for each in asked)
    assert statuses == [200, 200, 503, 503]


def test_nothing_is_computed_for_a_client_that_left(
    start_at_port: Any, predictor: Predictor, slow: SlowModel, encode: Encode
) -> None:
    with start_at_port(predictor, max_batch=1) as server:
        connections = [server.connect() for _ in range(5)]
        for connection in connections:
            connection.sendall(head(len(encode())) + encode())
            until = time.monotonic() + 10
            while not server.service.num_inside and time.monotonic() < until:
                time.sleep(0.01)
        time.sleep(0.3)
        for connection in connections[1:]:
            connection.close()
        until = time.monotonic() + 10
        while server.service.num_inside > 1 and time.monotonic() < until:
            time.sleep(0.01)
        slow.may_compute.set()
        assert connections[0].recv(20).startswith(b"HTTP/1.1 200")
        connections[0].close()
        assert is_idle(server)
        assert post(server.port, encode())[0] == 200  # comes after all others
        assert slow.num_images == [1, 1]
        assert server.service.metrics.cancelled == 4


def test_uploads_together_are_limited(
    start_at_port: Any, predictor: Predictor, encode: Encode
) -> None:
    size = 50_000
    with start_at_port(predictor, max_upload_bytes=size) as server:
        connections = [server.connect() for _ in range(18)]
        for connection in connections:
            connection.sendall(head(size) + bytes(size - 1))
        select(connections, [], [], 10)
        time.sleep(0.3)
        refused, _, _ = select(connections, [], [], 0)
        assert len(refused) in (1, 2)
        for connection in refused:
            assert connection.recv(10_000).startswith(b"HTTP/1.1 503")
        assert server.service.held.num <= 16 * size
        for connection in connections:
            connection.close()
        assert is_idle(server)
        assert post(server.port, encode())[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_large_uploads_are_refused_as_they_come(server: Any, chunked: bool) -> None:
    with server.connect() as connection:
        if chunked:
            connection.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        else:
            connection.sendall(head(10**12))
            piece = bytes(0x10000)
        sent = 0
        try:
            for _ in range(20):  # the reply is not lost although this goes on
                connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass
        status, sentence = status_and_error(received(connection))
    assert status == 413
    assert "larger than 0.2 MB" in sentence
    assert is_idle(server)


def test_curl_is_not_asked_to_continue_a_large_upload(server: Any) -> None:
    reply = server.exchange(head(10**9, more="Expect: 100-continue\r\n"))
    assert status_and_error(reply)[0] == 413
    assert b"100 Continue" not in reply


def test_slow_clients_are_cut_off(server: Any, closing: ExitStack) -> None:
    started = time.monotonic()
    late = [closing.enter_context(server.connect()) for _ in range(4)]
    late[0].sendall(b"")
    late[1].sendall(b"POST /predict HTTP/1.1\r\nHo")
    late[2].sendall(head(1000) + b"some")
    late[3].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
    replies = [received(connection) for connection in late]
    assert time.monotonic() - started < 8
    assert status_and_error(replies[0])[0] == 408
    assert "headers took more than 0.5 s" in status_and_error(replies[1])[1]
    status, sentence = status_and_error(replies[2])
    assert status == 408
    assert "may take 1 s, and pause for 0.5 s" in sentence
    assert replies[3].startswith(b"HTTP/1.1 200")
    assert is_idle(server)


def test_a_trickle_is_cut_off(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(head(1000))
        started = time.monotonic()
        try:
            while time.monotonic() - started < 6:
                connection.sendall(b"x")
                time.sleep(0.1)
        except ConnectionError:
            pass
        seconds = time.monotonic() - started
    assert 0.8 < seconds < 5


def test_headers_that_trickle_are_cut_off(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        started = time.monotonic()
        try:
            while time.monotonic() - started < 6:
                connection.sendall(b"A: b\r\n")
                time.sleep(0.1)
        except ConnectionError:
            pass
    assert time.monotonic() - started < 5


def test_who_does_not_read_is_cut_off(server: Any) -> None:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", server.port))
    request = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    started = time.monotonic()
    try:
        while time.monotonic() - started < 15:
            connection.sendall(request * 100)
    except (ConnectionError, TimeoutError):
        pass
    assert time.monotonic() - started < 14
    connection.close()
    assert post(server.port, b"text")[0] == 415


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 20_000,
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\nab",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=range(9),
)
def test_what_is_not_http_is_refused(server: Any, request_bytes: bytes) -> None:
    status, sentence = status_and_error(server.exchange(request_bytes))
    assert status == 400
    assert sentence.startswith("This is not valid HTTP")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 4000,
    ],
    ids=["address", "header", "headers"],
)
def test_long_headers_are_refused(server: Any, head: bytes) -> None:
    request = head + b"Connection: close\r\n\r\n"
    whole = status_and_error(server.exchange(request))
    assert whole[0] == 431
    assert "longer than 16,384 bytes" in whole[1]
    with server.connect() as connection:
        connection.sendall(request[:10_000])
        time.sleep(0.1)
        connection.sendall(request[10_000:17_000])
        status, sentence = status_and_error(received(connection))
    assert status in (400, 431)
    assert "longer than 16,384 bytes" in sentence


def test_odd_but_valid_requests_are_answered(server: Any) -> None:
    def status(request: bytes) -> int:
        return int(server.exchange(request).split()[1])

    close = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert status(b"GET /../../etc/passwd" + close) == 404
    assert status(b"GET /%2e%2e/%2e%2e/etc/passwd" + close) == 404
    assert status(b"GET //etc/passwd" + close) == 404
    assert status(b"GET http://localhost/" + close) in (200, 404)
    assert status(b"BREW /" + close) == 405
    assert status(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 421
    assert status(b"GET /%ff%fe" + close) == 404
    upgrade = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close, Upgrade\r\nUpgrade: "
    assert status(b"GET /" + upgrade + b"websocket\r\n\r\n") == 200
    assert status(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n") == 200


def test_many_connections_are_refused(server: Any, encode: Encode) -> None:
    connections = [server.connect() for _ in range(30)]
    time.sleep(0.2)
    status, sentence = status_and_error(server.exchange(b""))
    assert status == 503
    assert "too many connections" in sentence
    for connection in connections:
        connection.close()
    time.sleep(0.2)
    assert post(server.port, encode())[0] == 200


def test_a_body_that_breaks_off_leaves_nothing(server: Any) -> None:
    for _ in range(20):
        with server.connect() as connection:
            connection.sendall(head(1000) + bytes(500))
    assert is_idle(server)
