"""`t2t serve`: a page and a JSON API for a model."""

import os
import re
import secrets
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction

from t2t.commands.options import (
    WEIGHTS,
    CodeOption,
    DeviceOption,
    ModelOption,
    at_least,
    at_most,
    check_max_pixels,
    option,
    run_code,
    warn,
)
from t2t.errors import UserError, require
from t2t.serving.server.options import DEFAULT_MAX_PIXELS, MEGABYTE, ServerOptions

if TYPE_CHECKING:
    from t2t.serving.predictor import Predictor

TOKEN_VARIABLE = "T2T_TOKEN"
MIN_TOKEN_LENGTH = 8


def serve(
    weights: Annotated[
        Positional[str],
        option(
            f"{WEIGHTS}.",
            "(default: builtin)",
            "[WEIGHTS]",
        ),
    ] = "builtin",
    *,
    host: Annotated[
        str,
        option(
            "Address to listen on; 0.0.0.0 for all interfaces.",
            "(default: 127.0.0.1, for this machine alone)",
            "ADDRESS",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, option("Port to listen on; 0 for any free one.", "(default: 8000)", "N")
    ] = 8000,
    token: Annotated[
        str | None,
        option(
            f"Require this token; `new` generates one. The variable {TOKEN_VARIABLE} "
            "sets it without showing it to other users.",
            "",
            "TOKEN|new",
        ),
    ] = None,
    allow_host: Annotated[
        UseAppendAction[tuple[str, ...]],
        option(
            "A name under which clients reach this server, such as a proxy's.",
            "(repeatable)",
            "NAME",
        ),
    ] = (),
    max_upload_mb: Annotated[
        float, option("Refuse larger uploads.", "(default: 20)", "MB")
    ] = 20,
    max_pixels: Annotated[
        int,
        option(
            "Refuse images with more pixels.", f"(default: {DEFAULT_MAX_PIXELS})", "N"
        ),
    ] = DEFAULT_MAX_PIXELS,
    max_batch: Annotated[
        int, option("Images per forward pass, at most.", "(default: 16)", "N")
    ] = 16,
    max_wait_ms: Annotated[
        float,
        option("How long an image waits for others to join it.", "(default: 5)", "MS"),
    ] = 5,
    queue_size: Annotated[
        int, option("Images in progress; more get a 503.", "(default: 64)", "N")
    ] = 64,
    access_log: Annotated[bool, option("Print a line per request.")] = False,
    model: ModelOption = None,
    code: CodeOption = (),
    device: DeviceOption = None,
) -> None:
    """Serve a model: a page to drop images on, and a JSON API.

    Examples:
      t2t serve
      t2t serve runs/own --port 8080
      t2t serve runs/own --host 0.0.0.0 --token new
    """
    at_most(65_535, "--port", at_least(0, "--port", port))
    at_least(1, "--max-batch", max_batch)
    at_least(1, "--queue-size", queue_size)
    check_max_pixels(max_pixels)
    require("--max-upload-mb", max_upload_mb, 0.001, 2000)
    require("--max-wait-ms", max_wait_ms, 0, 10_000)
    check_names(allow_host)
    given_token, token = token, chosen_token(token)
    need_packages()

    from t2t.serving.server.run import is_local, listen

    with listen(host, port) as listener:
        outward = not is_local(listener)
        options = ServerOptions(
            token=token,
            hosts=(*allow_host, *own_names()) if outward else allow_host,
            access_log=access_log,
            max_upload_bytes=round(max_upload_mb * MEGABYTE),
            max_pixels=max_pixels,
            max_batch=max_batch,
            max_wait_ms=max_wait_ms,
            queue_size=queue_size,
        )
        run_code(code)

        from t2t.serving.server.run import leave, run, url_of
        from t2t.training.threads import use_free_cores

        predictor = load_predictor(weights, model, device, max_pixels)
        if outward:
            warn(advice(token))
        fragment = f"#token={token}" if given_token == "new" else ""
        ready = ready_line(predictor, url_of(listener) + fragment)
        with use_free_cores(predictor.device):
            run(predictor, listener, options, lambda: print(ready, flush=True))
    leave()


def load_predictor(
    weights: str, model: str | None, device: str | None, max_pixels: int
) -> "Predictor":
    """The model to serve; prints what is assumed of it."""
    from t2t.models.trained import load_trained
    from t2t.serving.predictor import Predictor
    from t2t.training.distributed import find_device

    chosen_device = find_device(device)
    trained = load_trained(weights, model=model)
    predictor = Predictor(trained, chosen_device, max_pixels)
    warn(*trained.notes)
    return predictor


def ready_line(predictor: "Predictor", url: str) -> str:
    """Says what is served, and where."""
    trained = predictor.trained
    height, width = trained.image_size
    return (
        f"{trained.name} ({len(trained.class_names)} classes, {height}×{width} pixels, "
        f"{predictor.device.type}) is served at {url}\nPress Ctrl-C to stop."
    )


def chosen_token(given: str | None) -> str | None:
    """The token that clients have to send, if any."""
    if given == "new":
        return secrets.token_urlsafe(18)
    named = "--token"
    if given is None:
        given = os.environ.get(TOKEN_VARIABLE)
        named = TOKEN_VARIABLE
    if given is None:
        return None
    if len(given) < MIN_TOKEN_LENGTH or not given.isascii() or not given.isprintable():
        raise UserError(
            f"{named} must have {MIN_TOKEN_LENGTH} or more printable ASCII characters; "
            "`--token new` makes a good one."
        )
    if given != given.strip():
        raise UserError(f"{named} must not begin or end with a space.")
    return given


def check_names(names: tuple[str, ...]) -> None:
    """Raises an error for what is an address or URL rather than a name."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise UserError(
                f"--allow-host {name} is not a name: give it without scheme, port and "
                "path, such as vision.example.org."
            )


def own_names() -> tuple[str, ...]:
    """Names of this machine in its network."""
    name = socket.gethostname()
    return name, f"{name}.local"


def advice(token: str | None) -> str:
    """Advice on a server that other machines can reach."""
    plain = "replies and uploads are not encrypted: put a proxy with TLS before it"
    if token is None:
        return (
            f"Anyone who can reach this address can use the model: give --token; and "
            f"{plain}."
        )
    return f"Other machines reach this address, and {plain}."


def need_packages() -> None:
    """Raises an error if the server's packages are not installed."""
    packages = {
        "fastapi": "fastapi",
        "uvicorn": "uvicorn",
        "python_multipart": "python-multipart",
    }
    missing = [name for module, name in packages.items() if not find_spec(module)]
    if missing:
        raise UserError(
            f"t2t serve needs {' and '.join(missing)}: pip install {' '.join(missing)}."
        )
