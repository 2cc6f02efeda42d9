"""Files from anywhere: a folder, a web server, the hub."""

import http.server
import socket
import threading
import time
from pathlib import Path

import pytest
import torch

from t2t.errors import UserError
from t2t.models.checkpoint_io import reachability, resolve
from t2t.models.checkpoint_io.checkpoints import read_checkpoint
from t2t.models.checkpoint_io.resolve import resolve_file
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, save

SMALL = ModelConfig(dim=32, depth=2, num_heads=4, mlp_ratio=2, token_dim=16)


@pytest.fixture
def served(tmp_path):
    """A folder behind a web server of this machine, which can break off early."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            file = folder / self.path.removeprefix("/").removeprefix("cut/")
            if not file.is_file():
                self.send_error(404)
                return
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.path.startswith("/cut/"):
                content = content[: len(content) // 2]
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_is_downloaded_once_and_whole(served, tmp_path, monkeypatch):
    folder, address = served
    cache = tmp_path / "cache"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(cache))
    model = VisionTransformer(SMALL)
    file = save(model, folder)
    with pytest.raises(UserError, match=r"ended after|could not be downloaded"):
        load(f"{address}/cut/model.safetensors")
    with pytest.raises(UserError, match=r"could not be downloaded \(.*404"):
        load(f"{address}/absent.safetensors")
    assert list((cache / "checkpoints").iterdir()) == []
    url = f"{address}/model.safetensors"
    assert torch.equal(load(url).head.weight, model.head.weight)
    file.unlink()
    assert torch.equal(load(url).head.weight, model.head.weight)
    other = VisionTransformer(SMALL)
    save(other, folder / "elsewhere")  # under the same name
    found = load(f"{address}/elsewhere/model.safetensors")
    assert torch.equal(found.head.weight, other.head.weight)


def test_a_hub_name_becomes_repository_file_and_revision(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def hf_hub_download(repository, file_name, revision):
        asked.append((repository, file_name, revision))
        if repository == "nobody/nothing":
            raise OSError("offline")
        return str(file)

    file = save(VisionTransformer(SMALL), tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(resolve, "why_unreachable", lambda url: None)
    assert load("hf-hub:owner/name@v1").config == SMALL
    resolve_file("hf-hub:owner/name/sub/a.pth.tar")
    with pytest.raises(UserError, match=r"nobody/nothing could .*\(offline"):
        load("hf-hub:nobody/nothing")
    assert asked[:2] == [
        ("owner/name", "model.safetensors", "v1"),
        ("owner/name", "sub/a.pth.tar", None),
    ]


@pytest.fixture
def closed_port():
    """A port of this machine that nobody listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def offline_cache(tmp_path, monkeypatch):
    """Empty caches, and no proxy."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("kind", ["hub", "url"])
def test_a_closed_port_is_reported_at_once(
    closed_port, offline_cache, monkeypatch, kind
):
    address = f"http://127.0.0.1:{closed_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    started = time.monotonic()
    with pytest.raises(UserError, match=r"could not be downloaded \(127.*refused"):
        resolve_file("hf-hub:owner/name" if kind == "hub" else f"{address}/a.pth")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("kind", ["fails", "hangs"])
def test_an_unknown_name_is_reported_at_once(offline_cache, monkeypatch, kind):
    is_over = threading.Event()

    def getaddrinfo(*_, **__):
        if kind == "hangs":
            is_over.wait(60)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(reachability, "SECONDS", 0.3)
    words = {"fails": "Temporary failure", "hangs": "did not answer within 0.3 s"}
    for name in ("hf-hub:owner/name", "https://example.org/a.pth"):
        with pytest.raises(UserError, match=f"could not be downloaded .*{words[kind]}"):
            resolve_file(name)
    is_over.set()


def test_the_proxy_is_what_has_to_be_reached(closed_port, offline_cache, monkeypatch):
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{closed_port}")
    with pytest.raises(UserError, match=r"downloaded \(127\.0\.0\.1: .*refused"):
        resolve_file("https://example.org/a.pth")


def test_what_was_downloaded_needs_no_network(
    closed_port, offline_cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{closed_port}"
    )
    kept = str(tmp_path / "kept.safetensors")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_, **__: kept)
    assert str(resolve_file("hf-hub:owner/name")) == kept


def test_a_folder_stands_for_its_one_file_of_weights(tmp_path):
    with pytest.raises(UserError, match=r"has no model\.safetensors in it"):
        resolve_file(tmp_path)
    shipped = tmp_path / "mine.safetensors"
    shipped.touch()
    assert resolve_file(tmp_path) == shipped
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(UserError, match=r"mine\.safetensors, other.* name one"):
        resolve_file(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert resolve_file(tmp_path) == tmp_path / "model.safetensors"


def test_a_damaged_file_in_a_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    for content, told in ((b"", "is empty"), (b"x" * 99, "is damaged or cut off")):
        file.write_bytes(content)
        with pytest.raises(UserError) as refused:
            read_checkpoint(tmp_path)
        assert str(refused.value).startswith(f"{file} {told}")
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        read_checkpoint(tmp_path)
