"""Finds files of weights, and downloads them."""

import hashlib
import http.client
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import torch

from t2t.atomic import atomic_file
from t2t.errors import UserError, first_line
from t2t.models.builtin import NAME as BUILTIN
from t2t.models.builtin import builtin_file
from t2t.models.checkpoint_io.reachability import why_unreachable
from t2t.user_code import offer

FILE_NAME = "model.safetensors"
CONFIG_NAME = "config.json"


def resolve_file(path: str | os.PathLike[str]) -> Path:
    """The local file of a file, run folder, URL, `hf-hub:owner/name`, or `builtin`."""
    text = str(path)
    if text == BUILTIN:
        return builtin_file()
    if text.startswith(("http://", "https://")):
        return download(text)
    if text.startswith("hf-hub:"):
        return from_hub(text.removeprefix("hf-hub:"))
    file = Path(path).expanduser()
    if file.is_dir():
        # The model of a run, or the only file.
        found = [file / FILE_NAME] if (file / FILE_NAME).is_file() else []
        found = found or sorted(file.glob("*.safetensors"))
        if not found:
            raise UserError(
                f"The folder {text} has no {FILE_NAME} in it{why_no_model(file)}."
            )
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise UserError(f"The folder {text} holds {names}: name one of them.")
        offer(file)
        return found[0]
    if not file.is_file():
        raise UserError(no_file(text))
    offer(file.parent)
    return file


def no_file(text: str) -> str:
    """The error if there is nothing under a path or name."""
    return (
        f"There is no file {text}; give a file, a run folder, an http(s) URL, "
        "hf-hub:owner/name, builtin, or the name of a timm model that has pre-trained "
        "weights."
    )


def why_no_model(folder: Path) -> str:
    """Why a run's folder has no model, and what to do; empty for other folders."""
    if (folder / "result.json").exists():
        return (
            ": it was removed after the run had finished. Restore it, or train again "
            "with --fresh"
        )
    if (folder / "recipe.json").exists():
        return ": the run has not been evaluated yet. Run its command again to resume"
    if (folder / "fold1").is_dir():
        return f": it holds the folds of a cross-validation. Name one: {folder}/fold1"
    return ""


def from_hub(name: str) -> Path:
    """The file of a repository on the Hugging Face hub, downloaded once."""
    import huggingface_hub  # slow to import, and needed here only
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name_of_repository, _, revision = name.partition("@")
    owner, _, rest = name_of_repository.partition("/")
    repository_name, _, file_name = rest.partition("/")
    repository, file_name = f"{owner}/{repository_name}", file_name or FILE_NAME
    wanted = {"revision": revision or None}
    try:
        cached = huggingface_hub.try_to_load_from_cache(repository, file_name, **wanted)
        # Offline, huggingface_hub would retry for half a minute before using its cache.
        if reason := why_unreachable(huggingface_hub.constants.ENDPOINT):
            if isinstance(cached, str):
                return Path(cached)
            raise UserError(
                f"hf-hub:{name} could not be downloaded ({reason}): check the network, "
                "or give a local file."
            )
        file = huggingface_hub.hf_hub_download(repository, file_name, **wanted)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"hf-hub:{name} could not be downloaded ({first_line(error)}); the form is "
            "hf-hub:owner/name, with /file and @revision where needed."
        ) from error
    return Path(file)


def hub_config(name: str, weights: Path) -> dict[str, Any]:
    """The `config.json` beside weights on the Hugging Face hub; empty without one."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    local = weights.with_name(CONFIG_NAME)
    repository, _, revision = name.partition("@")
    owner, _, rest = repository.partition("/")
    try:
        if not local.is_file():
            if why_unreachable(huggingface_hub.constants.ENDPOINT):
                return {}
            local = Path(
                huggingface_hub.hf_hub_download(
                    f"{owner}/{rest.partition('/')[0]}",
                    CONFIG_NAME,
                    revision=revision or None,
                )
            )
        found = json.loads(local.read_text(encoding="utf-8"))
    except (HfHubHTTPError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def download(url: str) -> Path:
    """The file behind a URL, downloaded once into torch's cache."""
    # Two URLs can have the same file name.
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    name = Path(urllib.request.url2pathname(url.partition("?")[0])).name
    file = Path(torch.hub.get_dir()) / "checkpoints" / f"{digest}-{name}"
    if file.exists():
        return file
    if reason := why_unreachable(url):
        raise UserError(
            f"{url} could not be downloaded ({reason}): check the network, or "
            "give a local file."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with (
            urllib.request.urlopen(url, timeout=60) as response,
            atomic_file(file) as part,
            part.open("wb") as out,
        ):
            while chunk := response.read(1 << 20):
                out.write(chunk)
            expected = response.headers.get("Content-Length")
            if expected is not None and out.tell() != int(expected):
                raise UserError(
                    f"The download of {url} ended after {out.tell()} of {expected} "
                    "bytes; try again."
                )
    except (http.client.HTTPException, OSError) as error:
        raise UserError(
            f"{url} could not be downloaded ({first_line(error)})."
        ) from error
    return file
