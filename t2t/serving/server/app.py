"""The application: the page, the JSON API and its description."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from t2t import __version__
from t2t.serving.predictor import Predictor
from t2t.serving.server.explain import PARTS, Explainer
from t2t.serving.server.gate import CLIENT_LEFT, Gate
from t2t.serving.server.metrics import CONTENT_TYPE
from t2t.serving.server.options import ServerOptions
from t2t.serving.server.problem import (
    Problem,
    failure,
    json_response,
    problem_response,
)
from t2t.serving.server.service import Service

DEFAULT_TOP = 5
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
}
"""The files of the page; nothing else is served from disk."""

TopParameter = Annotated[
    int, Query(ge=1, le=1000, description="Classes in the reply, the best first.")
]
ClassParameter = Annotated[
    int | None,
    Query(
        alias="class",
        ge=0,
        description="Index of the class to explain; by default the most probable.",
    ),
]
PartsParameter = Annotated[
    str, Query(description=f"What to explain: some of {', '.join(PARTS)}.")
]
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The bytes of an image, or a form with them as `image`.",
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "string", "format": "binary"}},
                    "required": ["image"],
                }
            },
        },
    }
}


def create_app(service: Service) -> ASGIApp:
    """The application for a model."""
    app = FastAPI(
        title="t2t serve",
        version=__version__,
        description=f"Predictions of {service.trained.name}.",
        # Their pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    add_api(app, service)
    add_page(app)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid_parameter)
    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(ClientDisconnect, on_client_left)
    app.add_exception_handler(Exception, on_failure)
    open_paths = (*PAGE, "/health", "/favicon.ico")
    return Gate(app, service.options, service.metrics, open_paths)


def add_api(app: FastAPI, service: Service) -> None:
    """Adds the endpoints."""
    explainer = Explainer(service)
    model = model_json(service.predictor, service.options)

    @app.post("/predict", openapi_extra=UPLOAD, response_class=Response)
    async def predict(request: Request, top: TopParameter = DEFAULT_TOP) -> Response:
        """The most probable classes of an image."""
        check_parameters(request, ("top",))
        classes, times = await service.predict(request, top)
        return json_response({"predictions": service.classes_json(classes), **times})

    @app.post("/explain", openapi_extra=UPLOAD, response_class=Response)
    async def explain(
        request: Request,
        top: TopParameter = DEFAULT_TOP,
        index: ClassParameter = None,
        parts: PartsParameter = "attention,tokens",
    ) -> Response:
        """The evidence for a class: attention, tokens, and what hiding parts costs."""
        check_parameters(request, ("top", "class", "parts"))
        return await explainer.explain(request, top, index, parts)

    @app.get("/model", response_class=Response)
    async def describe() -> Response:
        """The model, its classes and the limits of the server."""
        return json_response(model)

    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """Whether the server answers."""
        return json_response({"status": "ok"})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Numbers about the server, for Prometheus."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)


def add_page(app: FastAPI) -> None:
    """Adds the files of the page."""
    folder = files("t2t.serving") / "page"
    for path, (name, media_type) in PAGE.items():
        content = (folder / name).read_bytes()
        app.add_route(
            path,
            page_file(content, media_type),
            methods=["GET"],
            include_in_schema=False,
        )


def page_file(
    content: bytes, media_type: str
) -> Callable[[Request], Awaitable[Response]]:
    """Serves a file from memory; browsers ask whether it has changed."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return serve


def model_json(predictor: Predictor, options: ServerOptions) -> dict[str, Any]:
    """The description of a model, for clients."""
    trained = predictor.trained
    return {
        "name": trained.name,
        "data": trained.data_name,
        "image_size": list(trained.image_size),
        "channels": trained.channels,
        "device": predictor.device.type,
        "multilabel": trained.is_multilabel,
        "num_classes": len(trained.class_names),
        "classes": list(predictor.readable_names),
        "notes": [without_folder(note, trained.path) for note in trained.notes],
        "limits": {
            "max_upload_bytes": options.max_upload_bytes,
            "max_pixels": options.max_pixels,
        },
        "version": __version__,
    }


def without_folder(note: str, path: str) -> str:
    """A note that names the file of weights, but not where it is on this machine."""
    for written in (Path(path), Path(path).expanduser()):
        note = note.replace(str(written), written.name or str(written))
    return note


def check_parameters(request: Request, allowed: Iterable[str]) -> None:
    """Refuses parameters that would have no effect."""
    for name in request.query_params:
        if name not in allowed:
            raise Problem(
                400,
                f"There is no parameter {name[:40]!a}; allowed: {', '.join(allowed)}.",
            )


async def on_http_error(request: Request, error: Exception) -> Response:
    """A wrong path or method, in a sentence."""
    assert isinstance(error, HTTPException)
    path = ascii(request.url.path[:80])
    sentences = {
        404: f"There is nothing at {path}; / is the page, /docs the API.",
        405: f"{path} does not take {request.method[:10]}; /docs describes the API.",
    }
    sentence = sentences.get(error.status_code, str(error.detail))
    return problem_response(Problem(error.status_code, sentence, error.headers))


async def on_invalid_parameter(request: Request, error: Exception) -> Response:
    """A parameter out of its range, in a sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name, given = first["loc"][-1], ascii(str(first.get("input"))[:40])
    return problem_response(
        Problem(400, f"{name}={given} is not allowed: {first['msg']}.")
    )


async def on_problem(request: Request, error: Exception) -> Response:
    """A refusal, in a sentence."""
    assert isinstance(error, Problem)
    return problem_response(error)


async def on_client_left(request: Request, error: Exception) -> Response:
    """A reply without a reader; the log shows its status."""
    return Response(status_code=CLIENT_LEFT)


async def on_failure(request: Request, error: Exception) -> Response:
    """The reply to an error of the server; the gate prints it."""
    return failure
