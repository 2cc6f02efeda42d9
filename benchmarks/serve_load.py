"""Compares the throughput of `t2t serve` with that of the bare model, on this machine.

    python benchmarks/serve_load.py --requests 10000 --out records/serving/load.json

Rounds alternate: the model in a plain loop of full batches, then the server at the same
batch size and number of threads, asked by one process with as many keep-alive
connections as keep its batches full. Then one client alone gives the latency without a
queue. The server's memory is read after every 500 requests.
"""

import argparse
import io
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from t2t.serving.predictor import Predictor

MEMORY_EVERY = 500
ROUND_SECONDS = 10.0
MAX_SECONDS = 3600.0


class Client:
    """Asks a server through keep-alive connections; costs little itself."""

    def __init__(self, port: int, num_connections: int, requests: list[bytes]) -> None:
        self.port = port
        self.num_connections = num_connections
        self.requests = requests
        self.selector = selectors.DefaultSelector()
        self.connections: list[socket.socket] = []
        self.num_sent = 0

    def connect(self) -> None:
        """Connects; the server closes connections that are idle for a round."""
        for _ in range(self.num_connections):
            connection = socket.create_connection(("127.0.0.1", self.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections.append(connection)

    def ask(self, num: int, seconds: float) -> list[float]:
        """Sends up to so many requests for so long; the latency of each."""
        until = time.perf_counter() + seconds
        started: dict[socket.socket, float] = {}
        received = dict.fromkeys(self.connections, b"")
        latencies: list[float] = []
        for connection in self.connections[:num]:
            self.selector.register(connection, selectors.EVENT_READ)
            started[connection] = self.send(connection)
        num_sent = len(started)
        while started:
            for key, _ in self.selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                received[connection] += connection.recv(65_536)
                if not is_whole(received[connection]):
                    continue
                now = time.perf_counter()
                received[connection] = b""
                latencies.append(now - started.pop(connection))
                if num_sent < num and now < until:
                    started[connection] = self.send(connection)
                    num_sent += 1
                else:
                    self.selector.unregister(connection)
        return latencies

    def send(self, connection: socket.socket) -> float:
        """Sends the next request and returns when."""
        connection.sendall(self.requests[self.num_sent % len(self.requests)])
        self.num_sent += 1
        return time.perf_counter()

    def close(self) -> None:
        """Closes all connections."""
        while self.connections:
            self.connections.pop().close()


def is_whole(reply: bytes) -> bool:
    """Whether this is all of a reply; raises an error unless it has predictions."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"Not a prediction: {reply[:400]!r}")
    start = head.find(b"content-length: ") + 16
    length = int(head[start : head.find(b"\r", start)])
    return len(body) == length > 0


def encoded_images(side: int, kind: str) -> list[bytes]:
    """Image files of several scenes."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(32):
        small = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((side, side), Image.Resampling.BICUBIC).save(file, kind)
        files.append(file.getvalue())
    return files


def as_request(image: bytes) -> bytes:
    """The HTTP request with this image."""
    head = (
        "POST /predict?top=5 HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(image)}\r\n\r\n"
    )
    return head.encode() + image


def bare_rate(
    predictor: Predictor, images: list[bytes], batch_size: int
) -> tuple[float, float]:
    """Images/s of the model in a loop for a round, and per second of processor time."""
    pixels = torch.cat([predictor.model_input(image) for image in images])
    repeated = pixels.repeat(-(-batch_size // len(pixels)), 1, 1, 1)[:batch_size]
    batch = predictor.normalised(repeated)
    num = 0
    with torch.inference_mode():
        predictor.model(batch)
        started, cpu = time.perf_counter(), time.process_time()
        while (seconds := time.perf_counter() - started) < ROUND_SECONDS:
            predictor.model(batch)
            num += batch_size
    return num / seconds, num / (time.process_time() - cpu)


def cpu_seconds(pid: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_megabytes(pid: int) -> float:
    """The memory of a process."""
    text = Path(f"/proc/{pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def start(weights: str, batch_size: int) -> tuple[subprocess.Popen[str], int]:
    """A server, and its port."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "t2t", "serve", weights, "--port", "0"),
            *("--max-batch", str(batch_size), "--device", "cpu"),
            *("--queue-size", str(4 * batch_size)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:(\d+)/", line)
    if found is None:
        raise SystemExit(f"The server did not start: {line}")
    return process, int(found[1])


def milliseconds(latencies: list[float]) -> dict[str, float]:
    """p50 and p99."""
    ordered = sorted(latencies)
    return {
        "p50_ms": round(1000 * ordered[len(ordered) // 2], 1),
        "p99_ms": round(1000 * ordered[len(ordered) * 99 // 100], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="builtin")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=32, help="pixels of an upload")
    parser.add_argument("--kind", default="PNG", help="format of an upload")
    parser.add_argument("--seconds", type=float, default=1500.0, help="stop after")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    predictor = Predictor(given.weights, "cpu")
    images = encoded_images(given.side, given.kind)
    process, port = start(given.weights, given.batch_size)
    client = Client(port, 2 * given.batch_size, [as_request(each) for each in images])
    client.connect()
    client.ask(2 * given.batch_size, 60.0)  # warms up
    client.close()
    bare: list[float] = []
    bare_by_cpu: list[float] = []
    served: list[float] = []
    latencies: list[float] = []
    memory = [round(resident_megabytes(process.pid), 1)]
    server_cpu = client_cpu = 0.0
    until = time.monotonic() + min(given.seconds, MAX_SECONDS)
    try:
        while len(latencies) < given.requests and time.monotonic() < until:
            rate, rate_by_cpu = bare_rate(predictor, images, given.batch_size)
            bare.append(rate)
            bare_by_cpu.append(rate_by_cpu)
            client.connect()
            before = cpu_seconds(process.pid), time.process_time()
            started, num = time.perf_counter(), len(latencies)
            while (
                time.perf_counter() - started < ROUND_SECONDS
                and len(latencies) < given.requests
            ):
                left = min(given.requests - len(latencies), MEMORY_EVERY)
                seconds = ROUND_SECONDS - (time.perf_counter() - started)
                latencies += client.ask(left, seconds)
            passed = time.perf_counter() - started
            served.append((len(latencies) - num) / passed)
            client.close()
            server_cpu += cpu_seconds(process.pid) - before[0]
            client_cpu += time.process_time() - before[1]
            while len(memory) <= len(latencies) // MEMORY_EVERY:
                memory.append(round(resident_megabytes(process.pid), 1))
        sizes = mean_batch(port)
        alone = client_alone(port, images)
    finally:
        process.terminate()
        process.wait()
    ratios = [one / other for one, other in zip(served, bare, strict=True)]
    result: dict[str, Any] = {
        "weights": given.weights,
        "batch_size": given.batch_size,
        "mean_batch_size_served": sizes,
        "connections": 2 * given.batch_size,
        "upload": f"{given.side} px {given.kind}",
        "threads_of_the_model": torch.get_num_threads(),
        "requests": len(latencies),
        "rounds": len(bare),
        "bare_images_per_second": round(statistics.mean(bare), 1),
        "served_requests_per_second": round(statistics.mean(served), 1),
        "served_over_bare": round(statistics.mean(served) / statistics.mean(bare), 3),
        "served_over_bare_by_processor_time": round(
            len(latencies) / server_cpu / statistics.mean(bare_by_cpu), 3
        ),
        "load_average": [round(each, 1) for each in os.getloadavg()],
        "ratio_by_round": [round(each, 3) for each in ratios],
        **milliseconds(latencies),
        "alone": alone,
        "bare_cpu_ms_per_image": round(1000 / statistics.mean(bare_by_cpu), 2),
        "server_cpu_ms_per_request": round(1000 * server_cpu / len(latencies), 2),
        "client_cpu_ms_per_request": round(1000 * client_cpu / len(latencies), 2),
        "resident_megabytes_every_500_requests": memory,
    }
    text = json.dumps(result, indent=1) + "\n"
    if given.out:
        given.out.write_text(text)
    print(text, end="")


def client_alone(port: int, images: list[bytes]) -> dict[str, float]:
    """The latency of one client that asks one at a time."""
    client = Client(port, 1, [as_request(image) for image in images])
    client.connect()
    latencies = client.ask(200, 60.0)
    client.close()
    return milliseconds(latencies)


def mean_batch(port: int) -> float:
    """The mean size of the batches that images were in."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        text = b""
        while piece := connection.recv(65_536):
            text += piece
    (total,) = re.findall(rb"^t2t_batch_size_sum ([\d.]+)", text, re.M)
    (num,) = re.findall(rb"^t2t_batch_size_count (\d+)", text, re.M)
    return round(float(total) / int(num), 2)


if __name__ == "__main__":
    main()
