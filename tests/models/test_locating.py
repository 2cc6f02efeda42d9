"""Files from anywhere: a folder, a web server, the hub."""

import http.server
import threading

import pytest
import torch

from t2t.errors import UserError
from t2t.models.config import ModelConfig
from t2t.models.reading.locating import locate
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
    thread = threading.Thread(target=server.serve_forever)
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
    with pytest.raises(UserError, match=r"broke off|could not be downloaded"):
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
    assert load("hf-hub:owner/name@v1").config == SMALL
    locate("hf-hub:owner/name/sub/a.pth.tar")
    with pytest.raises(UserError, match=r"nobody/nothing could not be had \(offline"):
        load("hf-hub:nobody/nothing")
    assert asked[:2] == [
        ("owner/name", "model.safetensors", "v1"),
        ("owner/name", "sub/a.pth.tar", None),
    ]


def test_a_folder_stands_for_its_one_file_of_weights(tmp_path):
    with pytest.raises(UserError, match=r"has no model\.safetensors in it"):
        locate(tmp_path)
    shipped = tmp_path / "mine.safetensors"
    shipped.touch()
    assert locate(tmp_path) == shipped
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(UserError, match=r"mine\.safetensors, other.* name one"):
        locate(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert locate(tmp_path) == tmp_path / "model.safetensors"
