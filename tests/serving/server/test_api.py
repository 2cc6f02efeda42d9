"""What the API answers to right and wrong requests."""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

import t2t
from t2t.analysis.attention_maps import attention_maps
from t2t.analysis.attention_rollout import rollout
from t2t.analysis.occlusion import occlusion_map
from t2t.models.create import create_model
from t2t.models.trained import TrainedModel, load_trained
from t2t.serving.predictor import Predictor
from t2t.serving.server import explain

Encode = Callable[..., bytes]


def form(*parts: tuple[str, str, bytes], boundary: str = "xx") -> dict[str, Any]:
    """A multipart request of (name, further parameters, content)."""
    body = b""
    for name, more, content in parts:
        disposition = f'Content-Disposition: form-data; name="{name}"{more}'
        head = f"--{boundary}\r\n{disposition}\r\n\r\n"
        body += head.encode() + content + b"\r\n"
    kind = f"multipart/form-data; boundary={boundary}"
    return {
        "content": body + f"--{boundary}--\r\n".encode(),
        "headers": {"Content-Type": kind},
    }


def error(response: Any, status: int) -> str:
    """The sentence of a refusal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (sentence,) = response.json().values()
    assert re.fullmatch(r"[A-Z'a-z=/].*\.", sentence)
    assert "\n" not in sentence
    return str(sentence)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_predictions_are_the_predictors(
    client: TestClient, predictor: Predictor, encode: Encode, kind: str
) -> None:
    image = encode(kind)
    (expected,) = predictor.predict(image, top=3)
    for request in (
        {"content": image},
        {"content": image, "headers": {"Content-Type": f"image/{kind.lower()}"}},
        form(("image", "", image)),
        form(("upload", '; filename="ä.png"', image)),
    ):
        found = client.post("/predict?top=3", **request)
        assert found.status_code == 200
        assert found.json()["predictions"] == [
            {
                "index": each.index,
                "class": each.class_name,
                "name": each.name,
                "probability": pytest.approx(each.probability, abs=1e-5),
            }
            for each in expected.classes
        ]
        assert found.json()["batch_size"] == 1
        assert {*found.json()["milliseconds"]} >= {"decode", "wait", "model", "total"}


def test_top_is_limited_by_the_classes(client: TestClient, encode: Encode) -> None:
    assert len(client.post("/predict", content=encode()).json()["predictions"]) == 5
    every = client.post("/predict?top=1000", content=encode()).json()["predictions"]
    assert len(every) == 6
    for wrong in ("0", "-1", "1001", "x", ""):
        response = client.post(f"/predict?top={wrong}", content=encode())
        assert f"top='{wrong}' is not allowed" in error(response, 400)
    response = client.post("/predict?topk=3", content=encode())
    assert "no parameter 'topk'; allowed: top" in error(response, 400)


def test_what_is_not_an_image_is_refused(client: TestClient, encode: Encode) -> None:
    def refused(content: bytes, status: int, **headers: str) -> str:
        return error(client.post("/predict", content=content, headers=headers), status)

    image = encode()
    assert "holds no image" in refused(b"", 400)
    assert "not an image in a known format" in refused(b"text", 415)
    assert "not an image in a known format" in refused(b"%!PS-Adobe-3.0 EPSF-3.0", 415)
    assert "cannot be read" in refused(image[:60], 422)
    assert "cannot be read" in refused(encode("JPEG")[:100], 422)
    assert "HEIC" in refused(b"\0\0\0\x18ftypheic" + bytes(100), 422)
    assert "larger than 0.1 MB" in refused(bytes(100_001), 413)
    large = encode("JPEG", (1002, 1000))
    assert "1,002 × 1,000 pixels; at most 1,000,000" in refused(large, 413)
    json_type = {"Content-Type": "application/json"}
    response = client.post("/predict", content=b"{}", headers=json_type)
    assert "application/json is not an image" in error(response, 415)
    zipped = client.post("/predict", content=image, headers={"Content-Encoding": "br"})
    assert "Content-Encoding" in error(zipped, 415)


def test_an_upload_may_be_as_large_as_is_allowed(
    client: TestClient, encode: Encode
) -> None:
    largest = encode().ljust(100_000, b"\0")
    assert client.post("/predict", content=largest).status_code == 200
    assert "than 0.1 MB" in error(client.post("/predict", content=largest + b"\0"), 413)
    pieces = [largest, b"\0"]  # of no length that the headers tell
    assert "than 0.1 MB" in error(client.post("/predict", content=iter(pieces)), 413)
    assert client.post("/predict", content=iter(pieces[:1])).status_code == 200


def test_malformed_forms_are_refused(client: TestClient, encode: Encode) -> None:
    image = encode()

    def refused(request: dict[str, Any]) -> str:
        return error(client.post("/predict", **request), 400)

    assert "'top' is not known" in refused(form(("top", "", b"3"), ("image", "", b"x")))
    twice = form(("image", "", image), ("image", "", image))
    assert "several images" in refused(twice)
    assert "no part 'image'" in refused(form())
    parts = [("", '; filename="a"', b"")] * 1000
    assert "several images" in refused(form(*parts))
    cut = form(("image", "", image))
    assert "before its last boundary" in refused(
        {**cut, "content": cut["content"][:-9]}
    )
    assert "malformed" in refused({**cut, "content": b"--xx\r\n\0: b\r\n"})
    no_boundary = {"Content-Type": "multipart/form-data"}
    assert "no boundary" in refused({**cut, "headers": no_boundary})
    long = {"Content-Type": f"multipart/form-data; boundary={'x' * 3000}"}
    assert "malformed" in refused({**cut, "headers": long})
    header = (
        b'--xx\r\nContent-Disposition: form-data; name="image"\r\n' + b"A: b\r\n" * 99
    )
    assert "malformed" in refused({**cut, "content": header})
    header = b"--xx\r\nContent-Disposition: " + b"a" * 50_000
    assert "malformed" in refused({**cut, "content": header})


def test_other_paths_and_methods_are_refused(client: TestClient) -> None:
    for path in ("/nowhere", "/..%2f..%2fetc/passwd", "/page.js/", "/%00", "/docs/x"):
        assert "/docs the API" in error(client.get(path), 404)
    assert "does not take GET" in error(client.get("/predict"), 405)
    assert "does not take PUT" in error(client.put("/predict", content=b""), 405)
    assert "does not take POST" in error(client.post("/"), 405)


def test_the_page_is_served_with_a_strict_policy(client: TestClient) -> None:
    for path, kind in {
        "/": "text/html",
        "/docs": "text/html",
        "/style.css": "text/css",
        "/page.js": "text/javascript",
        "/drawing.js": "text/javascript",
        "/docs.js": "text/javascript",
        "/icon.svg": "image/svg+xml",
    }.items():
        response = client.get(path)
        assert response.headers["content-type"].startswith(kind)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        outside = re.findall(r"https?://[^\s\"'<]+", response.text)
        allowed = ("http://www.w3.org/2000/svg", "http://127.0.0.1:8000/")
        assert [url for url in outside if not url.startswith(allowed)] == []
        assert "style=" not in response.text
        assert "<script>" not in response.text
        tag = response.headers["etag"]
        again = client.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert client.head(path).status_code == 200


def test_the_api_is_described(client: TestClient, predictor: Predictor) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    model = client.get("/model").json()
    assert model["classes"] == list(predictor.readable_names)
    assert model["image_size"] == [16, 16]
    assert model["limits"] == {"max_upload_bytes": 100_000, "max_pixels": 10**6}
    described = client.get("/openapi.json").json()
    assert {*described["paths"]} == {
        *("/predict", "/explain", "/model", "/health", "/metrics")
    }
    assert "image/*" in json.dumps(described["paths"]["/predict"]["post"])


def test_metrics_are_prometheus_text(
    start_local: Any, predictor: Predictor, encode: Encode
) -> None:
    with start_local(predictor) as found:
        for _ in range(3):
            found.client.post("/predict", content=encode())
        found.client.post("/predict", content=b"text")
        found.client.get("/nowhere")
        text = found.client.get("/metrics").text
    sample = r"[a-z_0-9]+(\{[a-z]+=\"[^\"]*\"(,[a-z]+=\"[^\"]*\")*\})? [-+0-9.e]+"
    for line in text.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) .*|{sample}", line), line
    assert 't2t_requests_total{path="/predict",status="200"} 3\n' in text
    assert 't2t_requests_total{path="/predict",status="415"} 1\n' in text
    assert 't2t_requests_total{path="other",status="404"} 1\n' in text
    assert "t2t_batch_size_count 3\n" in text
    assert 't2t_model_seconds_bucket{le="+Inf"} 3\n' in text
    assert "t2t_requests_inside 0\n" in text
    assert "t2t_upload_bytes 0\n" in text
    (memory,) = re.findall(r"^process_resident_memory_bytes (\d+)$", text, re.M)
    assert int(memory) > 10**7


def test_the_evidence_is_that_of_the_analysis(
    client: TestClient, predictor: Predictor, encode: Encode
) -> None:
    image = encode("PNG", (200, 120))
    found = client.post(
        "/explain?top=2&class=4&parts=attention,tokens,occlusion", content=image
    ).json()
    assert found["class"]["index"] == 4
    assert len(found["predictions"]) == 2
    pixels = predictor.normalised(predictor.model_input(image))
    with torch.no_grad():
        expected = occlusion_map(predictor.model, pixels, 4)
        layers = attention_maps(predictor.model, pixels)
    points = torch.tensor(found["occlusion"]["points"])
    assert torch.allclose(points, expected.flatten(), atol=0.02)
    (layer,) = found["attention"]["layers"]
    whole = rollout(layers, num_read=0)
    assert (layer["rows"], layer["columns"]) == tuple(whole.shape)
    assert layer["rollout"][0] == pytest.approx(whole.flatten().tolist(), abs=1e-3)
    assert [(each["width"], each["height"]) for each in found["tokens"]] == [
        *((16, 16), (8, 8), (8, 8), (8, 8))
    ]
    assert (found["input"]["width"], found["view"]["width"]) == (16, 96)
    assert found["notes"] == []
    only = client.post("/explain?parts=tokens", content=image).json()
    assert "attention" not in only
    assert "occlusion" not in only


def test_wrong_explanations_are_refused(client: TestClient, encode: Encode) -> None:
    def refused(words: str) -> str:
        return error(client.post(f"/explain?{words}", content=encode()), 400)

    assert "classes are 0 to 5" in refused("class=6")
    assert "class='-1'" in refused("class=-1")
    assert "attention, tokens, occlusion" in refused("parts=everything")
    assert "allowed: top, class, parts" in refused("klass=1")
    assert "cannot be read" in error(
        client.post("/explain", content=encode()[:50]), 422
    )


def test_explanations_are_written_by_threads_beside_the_loop(
    client: TestClient, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[str]] = {"json_response": set(), "picture_json": set()}
    for name, found in threads.items():
        function = getattr(explain, name)

        def noted(
            *given: Any, function: Any = function, found: Any = found, **more: Any
        ) -> Any:
            found.add(threading.current_thread().name.partition("_")[0])
            return function(*given, **more)

        monkeypatch.setattr(explain, name, noted)
    assert client.post("/explain", content=encode()).status_code == 200
    assert threads == {name: {"t2t-decode"} for name in threads}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_timm_models_are_explained_as_far_as_they_can(
    start_local: Any, encode: Encode, name: str
) -> None:
    import timm

    model = timm.create_model(name, num_classes=3)
    if name.startswith("vit"):
        model = timm.create_model(name, num_classes=3, img_size=32, depth=2)
    trained = TrainedModel(
        model=model,
        name=name,
        path=name,
        class_names=("a", "b", "c"),
        image_size=(32, 32),
        channels=3,
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        crop_fraction=1.0,
        data=None,
    )
    with start_local(Predictor(trained, "cpu")) as found:
        reply = found.client.post("/explain", content=encode("JPEG")).json()
    assert reply["tokens"] == []
    assert any("Token pictures" in note for note in reply["notes"])
    if name == "resnet18":
        assert reply["attention"] is None
        assert any("no attention" in note for note in reply["notes"])
    else:
        assert len(reply["attention"]["layers"]) == 2
        assert len(reply["attention"]["layers"][0]["rollout"]) == 4


def test_the_path_of_the_training_data_stays_with_its_owner(start_local: Any) -> None:
    trained = replace(load_trained("builtin"), data="/home/anna/clients/insects/")
    with start_local(Predictor(trained, "cpu")) as found:
        assert found.client.get("/model").json()["data"] == "insects"


def test_the_folder_of_the_weights_stays_with_its_owner(
    start_local: Any, tmp_path: Path
) -> None:
    file = tmp_path / "bare.safetensors"
    t2t.save(t2t.load("builtin"), file)
    trained = load_trained(file)
    assert len(trained.notes) == 2
    with start_local(Predictor(trained, "cpu")) as found:
        notes = found.client.get("/model").json()["notes"]
    assert all(note.startswith("bare.safetensors does not") for note in notes)


def test_grey_models_are_served(start_local: Any, encode: Encode) -> None:
    torch.manual_seed(0)
    small = {"dim": 16, "depth": 2, "num_heads": 2, "token_dim": 8, "image_size": 8}
    model = create_model("t2t_vit_7_32", num_classes=3, in_channels=1, **small)
    trained = replace(
        t2t.models.trained.load_trained("builtin"),
        model=model,
        class_names=("a", "b", "c\udc80"),
        image_size=(8, 8),
        channels=1,
        mean=(0.5,),
        std=(0.5,),
    )
    with start_local(Predictor(trained, "cpu")) as found:
        reply = found.client.post("/explain?top=3", content=encode()).json()
        assert found.client.get("/model").json()["classes"][2] == "c\udc80"
    layers = reply["attention"]["layers"]
    assert [len(layer["rollout"]) for layer in layers] == [3, 3]


def test_models_of_several_labels_are_served(
    start_local: Any, predictor: Predictor, encode: Encode
) -> None:
    trained = replace(predictor.trained, is_multilabel=True)
    image = encode()
    with start_local(Predictor(trained, "cpu")) as found:
        assert found.client.get("/model").json()["multilabel"]
        reply = found.client.post("/explain?top=6&parts=occlusion", content=image)
    with torch.no_grad():
        pixels = predictor.normalised(predictor.model_input(image))
        expected = predictor.model(pixels)[0].sigmoid()
    likely = reply.json()["predictions"]
    for each in likely:
        probability = float(expected[each["index"]])
        assert each["probability"] == pytest.approx(probability, abs=1e-5)
        assert each["predicted"] == (probability >= 0.5)
    assert len({each["predicted"] for each in likely}) == 2
    points = reply.json()["occlusion"]["points"]
    assert max(points) <= 100 * likely[0]["probability"] + 0.01


def test_without_the_token_nothing_is_answered(
    start_local: Any, predictor: Predictor, encode: Encode
) -> None:
    with start_local(predictor, token="open sesame") as found:
        client = found.client
        for path in ("/", "/docs", "/page.js", "/health"):
            assert client.get(path).status_code == 200
        for wrong in ("", "open sesame", "Bearer", "Bearer open", "Basic open sesame"):
            headers = {"Authorization": wrong}
            for path in ("/model", "/metrics", "/openapi.json", "/nowhere"):
                response = client.get(path, headers=headers)
                assert "Authorization: Bearer" in error(response, 401)
                assert response.headers["www-authenticate"] == "Bearer"
            response = client.post("/predict", content=encode(), headers=headers)
            assert response.status_code == 401
        headers = {"Authorization": "bearer open sesame"}
        response = client.post("/predict", content=encode(), headers=headers)
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("192.168.1.7", 200),
        ("vision.example:443", 200),
        ("Vision.Example.", 200),
        ("evil.example", 421),
        ("vision.example.evil.example", 421),
        ("evil.example#localhost", 421),
        ("user@localhost", 421),
        ("localhost:port", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_other_names_are_refused(
    start_local: Any, predictor: Predictor, host: str, status: int
) -> None:
    with start_local(predictor, hosts=("vision.example",)) as found:
        response = found.client.get("/health", headers={"Host": host})
    assert response.status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:8000"}, 200),
        ({"Origin": "https://vision.example", "Host": "vision.example"}, 200),
        ({"Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://localhost:9000"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[x"}, 403),
        ({"Origin": "http://localhost:8000.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
    ids=str,
)
def test_pages_of_other_sites_are_refused(
    start_local: Any,
    predictor: Predictor,
    encode: Encode,
    headers: dict[str, str],
    status: int,
) -> None:
    with start_local(predictor, hosts=("vision.example",)) as found:
        response = found.client.post("/predict", content=encode(), headers=headers)
    assert response.status_code == status


def test_a_failure_is_one_sentence_and_in_the_log(
    start_local: Any,
    predictor: Predictor,
    encode: Encode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret of the machine")

    with start_local(predictor) as found:
        monkeypatch.setattr(predictor, "_classify", fail)
        response = found.client.post("/predict", content=encode())
        assert error(response, 500) == "The server failed; its log says why."
        monkeypatch.undo()
        assert found.client.post("/predict", content=encode()).status_code == 200
    assert "RuntimeError: a secret of the machine" in capsys.readouterr().err


def test_requests_are_logged_without_their_content(
    start_local: Any,
    predictor: Predictor,
    encode: Encode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with start_local(predictor, access_log=True, token="open sesame") as found:
        headers = {"Authorization": "Bearer open sesame"}
        found.client.post("/predict?top=2", content=encode(), headers=headers)
        found.client.get("/a%0Ab", headers=headers)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"[-0-9]+ [:0-9]+ \S+ POST /predict 200 \d+ ms", first)
    assert re.fullmatch(r"[-0-9]+ [:0-9]+ \S+ GET /a\\nb 404 \d+ ms", second)


def test_nothing_is_written_to_disk(
    client: TestClient, encode: Encode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tempfile

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file")

    for name in ("SpooledTemporaryFile", "TemporaryFile", "NamedTemporaryFile"):
        monkeypatch.setattr(tempfile, name, fail)
    monkeypatch.setattr(tempfile, "mkstemp", fail)
    request = form(("image", '; filename="x"', encode("BMP", (170, 170))))
    assert len(request["content"]) > 80_000
    assert client.post("/predict", **request).status_code == 200
