"""Sends damaged images, forms and HTTP requests to `t2t serve`.

    python benchmarks/serve_mutations.py
    python benchmarks/serve_mutations.py --uploads 100 --requests 50

Every upload must be answered with 200 or a 4xx in one sentence, within 60 seconds; the
server must go on, print no traceback, write no file and stay below 2 GB of memory.
Number n depends on n only.
"""

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from mutants import DAMAGES, mutated_image, original_images
from PIL import Image

SECONDS = 60.0
MAX_BYTES = 2 * 10**9
CLIENTS = 4
BOUNDARY = "one-boundary"
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F")
FORMATS = ("PNG", "TIFF", "WEBP", "GIF", "BMP", "JPEG", "PPM", "JPEG2000", "ICO", "TGA")


class Server:
    """A running `t2t serve`, and what it did."""

    def __init__(self, folder: Path) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open while it runs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "t2t", "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+)/", line)
        if found is None:
            raise SystemExit(f"The server did not start: {line}")
        self.port = int(found[1])

    def said(self) -> str:
        """What it printed to standard error."""
        self.errors.seek(0)
        return self.errors.read()

    def memory(self, kind: str) -> int:
        """Its memory now (VmRSS) or at most (VmHWM)."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (kibibytes,) = re.findall(rf"^{kind}:\s+(\d+) kB", text, re.M)
        return int(kibibytes) * 1024


def odd_image(number: int) -> bytes:
    """A whole image of an unusual mode, format or shape."""
    rng = random.Random(number)
    sides = [rng.choice((1, 2, 3, 17, 64, 300, 3000)) for _ in range(2)]
    if sides[0] * sides[1] > 10**6:
        sides[0] = 1
    pixels = np.random.default_rng(number).integers(0, 256, (*sides, 3), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    with contextlib.suppress(OSError, ValueError, KeyError):
        image = image.convert("L").convert(rng.choice(MODES))
    for kind in (rng.choice(FORMATS), "PNG", "TIFF"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            image.save(file, kind)
            break
    return file.getvalue()


def upload(number: int, originals: list[tuple[str, bytes]]) -> tuple[str, bytes, str]:
    """The path, body and type of an upload."""
    rng = random.Random(f"upload {number}")
    if number % 8 == 7:
        data = odd_image(number)
    else:
        _, data = mutated_image(originals, number)
    kind = rng.choice(("application/octet-stream", "image/png", "", "image/x"))
    if number % 5 == 4:
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        head = 'Content-Disposition: form-data; name="image"; filename="a.png"'
        data = (
            f"--{BOUNDARY}\r\n{head}\r\n\r\n".encode()
            + data
            + f"\r\n--{BOUNDARY}--\r\n".encode()
        )
        if rng.random() < 0.5:
            data = rng.choice(DAMAGES)(data, rng)
    path = "/explain" if number % 11 == 10 else "/predict"
    top = rng.choice(("", "", "?top=3", "?top=99"))
    if number % 25 == 24:
        top = rng.choice(("?top=0", "?tip=1", "?top=%00", "?top"))
    return path + top, data, kind


def send(port: int, path: str, data: bytes, kind: str) -> tuple[int, str]:
    """The status of the reply, and what is wrong with it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("POST", path, data, {"Content-Type": kind} if kind else {})
        response = connection.getresponse()
        body = response.read()
        reply = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    if response.status == 200:
        return 200, "" if reply["predictions"] else "no predictions"
    sentence = reply["error"]
    fine = 400 <= response.status < 500 and sentence.endswith(".")
    return response.status, "" if fine and "\n" not in sentence else body.decode()


def mutated_request(number: int, image: bytes) -> bytes:
    """A damaged HTTP request; half of them in the head alone."""
    rng = random.Random(f"request {number}")
    head = (
        f"POST /predict?top=2 HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: image/png\r\nContent-Length: {len(image)}\r\n"
        "Origin: http://localhost\r\nConnection: close\r\n\r\n"
    ).encode()
    if number % 2:
        return rng.choice(DAMAGES)(head, rng) + image
    return rng.choice(DAMAGES)(head + image, rng)


def exchange(port: int, request: bytes) -> int:
    """The status of the reply; 0 if the server closes without one."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        data = b""
        try:
            connection.sendall(request)
            while piece := connection.recv(65_536):
                data += piece
        except ConnectionError:
            pass
    return int(data.split()[1]) if data else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uploads", type=int, default=2500)
    parser.add_argument("--requests", type=int, default=500)
    given = parser.parse_args()
    originals = original_images()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        server = Server(folder)
        whole = originals[0][1]
        before = send_whole(server.port, whole)
        at_start = {*folder.iterdir()}  # PyTorch's own
        first = server.memory("VmRSS")
        started = time.monotonic()

        def one(number: int) -> int:
            path, data, kind = upload(number, originals)
            status, problem = send(server.port, path, data, kind)
            if problem:
                wrong.append(f"upload {number}: {status} {problem}")
            return status

        def two(number: int) -> int:
            status = exchange(server.port, mutated_request(number, whole))
            if status >= 500:
                wrong.append(f"request {number}: {status}")
            return status

        with ThreadPoolExecutor(CLIENTS) as clients:
            uploads = Counter(clients.map(one, range(given.uploads)))
        # Incomplete requests wait until the server gives up.
        with ThreadPoolExecutor(8 * CLIENTS) as clients:
            requests = Counter(clients.map(two, range(given.requests)))
        if send_whole(server.port, whole) != before:
            wrong.append("A whole image is predicted otherwise afterwards.")
        result: dict[str, Any] = {
            "uploads": dict(sorted(uploads.items())),
            "requests": dict(sorted(requests.items())),
            "seconds": round(time.monotonic() - started),
            "resident_megabytes_first": round(first / 1e6),
            "resident_megabytes_last": round(server.memory("VmRSS") / 1e6),
            "resident_megabytes_peak": round(server.memory("VmHWM") / 1e6),
            "files_written": [path.name for path in {*folder.iterdir()} - at_start],
            "printed": server.said()[-4000:],
        }
        if server.memory("VmHWM") > MAX_BYTES:
            wrong.append("too much memory")
        server.process.terminate()
        server.process.communicate()
    if result["files_written"]:
        wrong.append("files were written")
    if "Traceback" in result["printed"]:
        wrong.append("a traceback was printed")
    print(json.dumps(result, indent=1))
    print("\n".join(wrong), file=sys.stderr)
    raise SystemExit(1 if wrong else 0)


def send_whole(port: int, image: bytes) -> object:
    """The predictions for a whole image."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("POST", "/predict", image)
    reply = json.loads(connection.getresponse().read())
    connection.close()
    return reply["predictions"]


if __name__ == "__main__":
    main()
