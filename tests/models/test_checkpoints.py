"""Files from anywhere, read whole or refused, and never run."""

import http.server
import json
import os
import pickle
import threading

import pytest
import timm
import torch
from safetensors.torch import save_file

from t2t.errors import UserError
from t2t.models import checkpoints
from t2t.models.config import ModelConfig
from t2t.models.vit import VisionTransformer
from t2t.models.weights import load, load_weights, save

SMALL = ModelConfig(
    dim=32,
    depth=2,
    num_heads=4,
    mlp_ratio=2,
    token_dim=16,
    num_classes=5,
    image_size=(32, 48),
)


def logits(model, images):
    with torch.no_grad():
        return model.eval()(images)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Malicious:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("legacy", [True, False])
def test_pickled_code_is_never_run(legacy, tmp_path):
    file, trace = tmp_path / "a.pth.tar", tmp_path / "was here"
    content = {"state_dict": {"a": torch.zeros(1)}, "args": Malicious(trace)}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(UserError, match=r"asks for \S*mkdir, which is code") as caught:
        load(file)
    assert "weights_only" not in str(caught.value)
    assert not trace.exists()
    (tmp_path / "b.pth").write_bytes(pickle.dumps(Malicious(trace)))
    with pytest.raises(UserError):
        load(tmp_path / "b.pth")
    assert not trace.exists()


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_a_truncated_file_is_named(kind, keep, tmp_path):
    file = tmp_path / f"model.{kind}"
    model = VisionTransformer(SMALL)
    if kind == "pth":
        torch.save({"state_dict": model.state_dict()}, file)
    else:
        save(model, file)
    content = file.read_bytes()
    length = int(len(content) * keep) if isinstance(keep, float) else keep
    file.write_bytes(content[:length])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match=str(file)):
        load_weights(model, file)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_foreign_files_are_named(tmp_path):
    network = timm.create_model("resnet10t", num_classes=3)
    save_file(network.state_dict(), tmp_path / "resnet.safetensors")
    with pytest.raises(UserError, match=r"neither ours nor .* holds bn1.bias"):
        load(tmp_path / "resnet.safetensors")
    model = load(tmp_path / "resnet.safetensors", model="resnet10t")
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(logits(model, images), logits(network, images))
    (tmp_path / "page.pth").write_text("<!doctype html>")
    with pytest.raises(UserError, match="is text, not weights"):
        load(tmp_path / "page.pth")
    (tmp_path / "note.pth").write_text("hi\n")
    with pytest.raises(UserError, match="make no sense as a PyTorch file"):
        load(tmp_path / "note.pth")
    torch.save({"optimizer": {"lr": 1}}, tmp_path / "optimizer.pth")
    with pytest.raises(UserError, match=r"holds no weights: .* found optimizer"):
        load(tmp_path / "optimizer.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UserError, match="holds a list"):
        load(tmp_path / "list.pth")
    with pytest.raises(UserError, match="There is no file"):
        load(tmp_path / "absent.pth")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        load(tmp_path / "empty")


def test_a_newer_files_options_are_named(tmp_path):
    text = json.dumps({"config": {"dim": 8, "flavour": "sweet"}, "class_names": []})
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors", {"t2t": text})
    with pytest.raises(UserError, match=r"does not know \(flavour\); update t2t"):
        load(tmp_path / "a.safetensors")
    save_file({"a": torch.zeros(1)}, tmp_path / "b.safetensors", {"t2t": "{"})
    with pytest.raises(UserError, match="damaged description"):
        load(tmp_path / "b.safetensors")


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
    images = torch.randn(1, 3, 32, 48)
    assert torch.equal(logits(load(url), images), logits(model, images))
    file.unlink()
    assert torch.equal(logits(load(url), images), logits(model, images))


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
    checkpoints.locate("hf-hub:owner/name/sub/a.pth.tar")
    with pytest.raises(UserError, match=r"nobody/nothing could not be had \(offline"):
        load("hf-hub:nobody/nothing")
    assert asked[:2] == [
        ("owner/name", "model.safetensors", "v1"),
        ("owner/name", "sub/a.pth.tar", None),
    ]


def test_a_folder_stands_for_its_one_file_of_weights(tmp_path):
    with pytest.raises(UserError, match=r"has no model\.safetensors in it"):
        checkpoints.locate(tmp_path)
    shipped = tmp_path / "mine.safetensors"
    shipped.touch()
    assert checkpoints.locate(tmp_path) == shipped
    (tmp_path / "other.safetensors").touch()
    with pytest.raises(UserError, match=r"mine\.safetensors, other.* name one"):
        checkpoints.locate(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert checkpoints.locate(tmp_path) == tmp_path / "model.safetensors"
