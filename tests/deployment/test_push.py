"""A model is uploaded with its card, or one sentence says why not."""

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

import t2t
from t2t.cli import main
from t2t.deployment import push as module
from t2t.deployment.push import push
from t2t.errors import UserError

Output = pytest.CaptureFixture[str]


class FakeHub:
    """Keeps what is uploaded."""

    def __init__(
        self, error: Exception | None = None, public: Sequence[str] = ()
    ) -> None:
        self.error = error
        self.public = public
        self.files: dict[str, bytes] = {}
        self.created: list[tuple[str, bool]] = []

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if self.error:
            raise self.error
        assert exist_ok
        self.created.append((name, private))
        return f"https://huggingface.co/{name}"

    def model_info(self, name: str) -> Any:
        return SimpleNamespace(private=name not in self.public)

    def create_commit(self, name: str, operations: Any, *, commit_message: str) -> None:
        assert "t2t" in commit_message
        for each in operations:
            self.files[each.path_in_repo] = Path(each.path_or_fileobj).read_bytes()


def test_the_folder_is_uploaded_with_its_name_in_the_card(
    weights: Path, photos: list[str]
) -> None:
    hub = FakeHub()
    report = push(weights, "anna/ants", private=True, api=hub, images=photos)
    assert report.url == "https://huggingface.co/anna/ants"
    assert hub.created == [("anna/ants", True)]
    assert hub.files.keys() == {"config.json", "model.safetensors", "README.md"}
    card = hub.files["README.md"].decode()
    assert 't2t.load("hf-hub:anna/ants")' in card
    assert "OWNER/NAME" not in card
    assert "\n# ants\n" in card


def test_a_private_model_does_not_go_into_a_public_repository(
    weights: Path, photos: list[str]
) -> None:
    hub = FakeHub(public=["anna/ants"])
    with pytest.raises(UserError, match="exists on the hub and is public"):
        push(weights, "anna/ants", private=True, api=hub, images=photos[:1])
    assert not hub.files
    push(weights, "anna/ants", api=hub, images=photos[:1])
    assert hub.files


def test_an_exported_folder_is_uploaded_as_it_is(
    weights: Path, photos: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    t2t.export(weights, to="timm", out=folder, images=photos[:1])
    (folder / "README.md").write_text("my own card of OWNER/NAME")
    hub = FakeHub()
    push(folder, "anna/ants", api=hub)
    assert hub.files["README.md"] == b"my own card of anna/ants"
    with pytest.raises(UserError, match="write the license into its README"):
        push(folder, "anna/ants", api=hub, license="mit")
    with pytest.raises(UserError, match="checked then: leave the images out"):
        push(folder, "anna/ants", api=hub, images=photos[:1])
    assert hub.files["config.json"] == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_a_damaged_folder_is_not_uploaded(
    name: str, weights: Path, photos: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    t2t.export(weights, to="timm", out=folder, images=photos[:1])
    (folder / name).write_bytes(b"\xff")
    hub = FakeHub()
    with pytest.raises(UserError, match="damaged"):
        push(folder, "anna/ants", api=hub)
    assert not hub.created


def test_a_dry_run_needs_no_network(
    weights: Path, photos: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hub_api", None)
    assert main(["push", str(weights), "anna/ants", photos[0], "--dry-run"]) == 0
    told = capsys.readouterr()
    assert re.search(r"^config.json  [0-9.]+ (kB|bytes)$", told.out, re.MULTILINE)
    assert "Nothing was uploaded; it would be at" in told.err


@pytest.mark.parametrize("name", ["ants", "anna/", "/ants", "a/b/c", "an na/x", "a/-x"])
def test_a_bad_name_is_one_sentence(name: str, weights: Path) -> None:
    with pytest.raises(UserError, match="is not a name on the hub: give owner/name"):
        push(weights, name, api=FakeHub())


def test_no_token_and_no_network_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "why_unreachable", lambda url: "no route")
    with pytest.raises(UserError, match=r"cannot be reached \(no route\)"):
        module.hub_api()
    monkeypatch.setattr(module, "why_unreachable", lambda url: None)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match="There is no token"):
        module.hub_api()


def test_the_token_is_checked_before_the_export(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "why_unreachable", lambda url: "no route")
    monkeypatch.setattr(module, "export", None)
    with pytest.raises(UserError, match="cannot be reached"):
        push(weights, "anna/ants")


def test_a_refusal_of_the_hub_is_one_sentence(weights: Path, photos: list[str]) -> None:
    hub = FakeHub(OSError("403 Forbidden"))
    with pytest.raises(UserError, match=r"could not be uploaded \(403 Forbidden\)"):
        push(weights, "anna/ants", api=hub, images=photos[:1])


def test_a_refused_card_says_what_is_wrong_with_it(
    weights: Path, photos: list[str]
) -> None:
    refused = 'Invalid metadata in README.md.\n- "license" must be one of [mit, other]'
    hub = FakeHub(ValueError(refused))
    with pytest.raises(UserError, match=r'"license" must be one of \[mit, other\]\)'):
        push(weights, "anna/ants", api=hub, images=photos[:1])
