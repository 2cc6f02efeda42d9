"""Uploads an exported timm folder to the Hugging Face hub."""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2t.deployment.export import export
from t2t.deployment.options import NO_LICENSE
from t2t.deployment.timm_folder import CARD_NAME, FILES
from t2t.errors import UserError, first_line
from t2t.models.checkpoint_io.reachability import why_unreachable
from t2t.models.checkpoint_io.resolve import CONFIG_NAME
from t2t.models.trained import load_trained


@dataclass(frozen=True)
class PushReport:
    """What was uploaded, or would be."""

    url: str
    files: tuple[tuple[str, int], ...]
    """Names and sizes in bytes."""
    is_dry_run: bool


def push(
    weights: str | os.PathLike[str],
    name: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    api: Any = None,
    **options: Any,
) -> PushReport:
    """Uploads weights, or a folder of `t2t export --to timm`, as `owner/name`.

    `options` are those of `t2t.export`. With `dry_run`, all but the upload is done.
    `api` stands for huggingface_hub's HfApi.
    """
    check_name(name)
    if api is None and not dry_run:  # before the export, which takes time
        api = hub_api()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(weights).expanduser()
        if is_exported(folder):
            check_exported(folder, options)
        else:
            folder = Path(temporary) / name.partition("/")[2]
            export(weights, to="timm", out=folder, **options)
        name_in_card(folder, name, Path(temporary) / CARD_NAME)
        sizes = [(file, (folder / file).stat().st_size) for file in FILES]
        if dry_run:
            return PushReport(f"https://huggingface.co/{name}", tuple(sizes), True)
        url = upload(api, folder, Path(temporary), name, private)
    return PushReport(url, tuple(sizes), False)


def check_name(name: str) -> None:
    """Raises an error unless the name is owner/name in the letters of the hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    owner, slash, rest = name.partition("/")
    try:
        validate_repo_id(name)
        is_valid = bool(owner and slash and rest)
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise UserError(
            f"{name!r} is not a name on the hub: give owner/name, in letters, digits, "
            "- and _, as in t2t push runs/own anna/my-flowers."
        )


def is_exported(folder: Path) -> bool:
    """Whether a folder is what `t2t export --to timm` wrote."""
    return all((folder / name).is_file() for name in FILES)


def check_exported(folder: Path, options: Mapping[str, Any]) -> None:
    """Raises an error for options that come too late, and for damaged files."""
    if options.get("license", NO_LICENSE) != NO_LICENSE:
        raise UserError(
            f"{folder} is exported already: write the license into its {CARD_NAME}."
        )
    if options.get("images") or options.get("data"):
        raise UserError(
            f"{folder} is exported already, and was checked then: leave the images "
            "out, or give the weights that it was exported from."
        )
    try:
        json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))["architecture"]
        (folder / CARD_NAME).read_text(encoding="utf-8")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{folder} is damaged ({first_line(error)}): export it again by `t2t "
            "export --to timm`."
        ) from error
    load_trained(folder)


def name_in_card(folder: Path, name: str, file: Path) -> None:
    """Writes the model card with the name that the code in it loads."""
    card = (folder / CARD_NAME).read_text(encoding="utf-8")
    file.write_text(card.replace("OWNER/NAME", name), encoding="utf-8")


def hub_api() -> Any:
    """The hub's interface; one sentence if there is no token or no network."""
    import huggingface_hub
    from huggingface_hub import constants

    if reason := why_unreachable(constants.ENDPOINT):
        raise UserError(
            f"{constants.ENDPOINT} cannot be reached ({reason}): check "
            "the network, or see what would be uploaded with --dry-run."
        )
    if huggingface_hub.get_token() is None:
        raise UserError(
            "There is no token for the Hugging Face hub: run `hf auth login`, or set "
            "HF_TOKEN to one with write access."
        )
    return huggingface_hub.HfApi(library_name="t2t")


def upload(api: Any, folder: Path, cards: Path, name: str, private: bool) -> str:
    """Creates the repository if needed, and uploads all files in one commit."""
    from huggingface_hub import CommitOperationAdd
    from huggingface_hub.errors import HfHubHTTPError

    files: Sequence[tuple[str, Path]] = [
        (file, cards / file if file == CARD_NAME else folder / file) for file in FILES
    ]
    try:
        # None: as private as the owner's new repositories are by default.
        url = api.create_repo(name, private=private or None, exist_ok=True)
        # A repository that exists already stays as public as it is.
        is_too_public = private and not api.model_info(name).private
        if not is_too_public:
            api.create_commit(
                name,
                [CommitOperationAdd(file, str(path)) for file, path in files],
                commit_message="Upload a model exported by t2t",
            )
    except (HfHubHTTPError, OSError, ValueError) as error:
        if isinstance(error, ValueError) and CARD_NAME in str(error):
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"The hub refuses the model card of {name} ({reason}): export a folder "
                f"by t2t export --to timm, change its {CARD_NAME}, and push the folder."
            ) from error
        raise UserError(
            f"{name} could not be uploaded ({first_line(error)}): check the name, and "
            "that your token may write to it."
        ) from error
    if is_too_public:
        raise UserError(
            f"{name} exists on the hub and is public: make it private in its settings "
            "first, name another repository, or leave --private out."
        )
    return str(url)
