"""`t2t serve` as users meet it: its words, its start and its end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from t2t.cli import main
from t2t.commands import serve
from t2t.errors import UserError
from t2t.models.create import create_model
from t2t.models.weights import save

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    small = {"dim": 16, "depth": 1, "num_heads": 1, "token_dim": 8, "image_size": 8}
    model = create_model("t2t_vit_7_32", num_classes=3, **small)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    return save(model, path, name="t2t_vit_7_32")


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "t2t", "serve", "--port", "0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_it_serves_until_ctrl_c(weights: Path) -> None:
    environment = {"T2T_TOKEN": "open sesame"}
    with started(str(weights), "--host", "0.0.0.0", **environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(
            r"t2t_vit_7_32 \(3 classes, 8×8 pixels, \w+\) is served at "
            r"(http://localhost:\d+/)\n",
            line,
        )
        assert found, line + process.communicate()[1]
        url = found[1].replace("localhost", "127.0.0.1")
        assert json.load(urllib.request.urlopen(f"{url}health")) == {"status": "ok"}
        header = {"Authorization": "Bearer open sesame"}
        request = urllib.request.Request(f"{url}model", headers=header)
        model = json.load(urllib.request.urlopen(request))
        assert model["classes"] == ["class 0", "class 1", "class 2"]
        # A connection that is open does not hold it up.
        port = int(url.rsplit(":", 1)[1].strip("/"))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: a\r\n")
            before = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(20)
            seconds = time.monotonic() - before
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
    assert process.returncode == 0
    assert seconds < 2.0
    assert out == "Press Ctrl-C to stop.\n"
    *notes, warned = err.splitlines()
    assert "its 3 classes; they are numbered" in notes[0]
    assert "Other machines reach this address" in warned
    assert "open sesame" not in line + out + err


def test_a_new_token_is_in_the_address(weights: Path) -> None:
    with started(str(weights), "--token", "new") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.search(r"http://127\.0\.0\.1:\d+/#token=[-\w]{24}\n", line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--port", "70000"], "--port 70000 is too large"),
        (["--port", "-1"], "--port -1 is too small"),
        (["--host", "no.such.host.invalid"], "is not an address or a name"),
        (["--host", "192.0.2.1"], "--host 192.0.2.1 is not an address of this machine"),
        (["--host", "a" * 70], "is not an address or a name"),
        (["--token", "short"], "--token must have 8 or more printable ASCII"),
        (["--token", " sesame open"], "must not begin or end with a space"),
        (["--token", "sesame öffne"], "printable ASCII"),
        (["--max-upload-mb", "0"], "--max-upload-mb=0.0 must be from 0.001 to 2000"),
        (["--max-upload-mb", "nan"], "--max-upload-mb=nan must be"),
        (["--max-wait-ms", "-1"], "--max-wait-ms=-1.0 must be from 0 to 10000"),
        (["--max-pixels", "0"], "--max-pixels 0 is too small"),
        (["--max-batch", "0"], "--max-batch 0 is too small"),
        (["--queue-size", "0"], "--queue-size 0 is too small"),
        (["--allow-host", "https://a.example/"], "give it without scheme, port"),
        (["nowhere.safetensors"], "nowhere.safetensors"),
        (["a", "b"], "b"),
        (["--tokn", "x"], "--token"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_one_sentence(
    words: list[str], says: str, capsys: Output
) -> None:
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, *port]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_a_port_in_use_is_named(capsys: Output) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"Port {port} is in use by another program" in capsys.readouterr().err


def test_damaged_weights_are_one_sentence(
    weights: Path, tmp_path: Path, capsys: Output
) -> None:
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(weights.read_bytes()[:-100])
    assert main(["serve", str(damaged), "--port", "0"]) == 2
    nan = create_model("t2t_vit_7_32", num_classes=3, image_size=8, depth=1)
    torch.nn.init.constant_(nan.get_parameter("head.weight"), torch.nan)
    save(nan, tmp_path / "nan.safetensors", name="t2t_vit_7_32")
    assert main(["serve", str(tmp_path / "nan.safetensors"), "--port", "0"]) == 2
    said = capsys.readouterr()
    assert "damaged.safetensors" in said.err
    assert "outputs NaN or infinity: its weights are damaged" in said.err
    assert "Traceback" not in said.err
    for thread in threading.enumerate():
        if thread.name.startswith("t2t-"):
            thread.join(5)
            assert not thread.is_alive(), thread.name


def test_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: name == "fastapi" or None)
    assert main(["serve"]) == 2
    assert capsys.readouterr().err == (
        "t2t: t2t serve needs uvicorn and python-multipart: pip install uvicorn "
        "python-multipart.\n"
    )


def test_everybody_is_warned_of() -> None:
    assert "give --token" in serve.advice(None)
    assert "give --token" not in serve.advice("open sesame")
    with pytest.raises(UserError, match="without scheme"):
        serve.check_names(("a/b",))
