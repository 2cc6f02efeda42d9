"""Refusals of a request: a status and one sentence."""

import json
from collections.abc import Mapping

from starlette.responses import Response


class Problem(Exception):  # noqa: N818 (the client's, not the server's error)
    """Why a request is refused: its status, a sentence, and further headers."""

    def __init__(
        self, status: int, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A reply in JSON; NaN would not be JSON, so it is an error here."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, default=str)
    # Class names may hold lone surrogates, which are not UTF-8.
    encoded = body.encode("utf-8", errors="backslashreplace")
    return Response(encoded, status, headers, media_type="application/json")


def problem_response(problem: Problem) -> Response:
    """The reply to a refused request."""
    return json_response({"error": problem.sentence}, problem.status, problem.headers)


failure = problem_response(Problem(500, "The server failed; its log says why."))
"""The reply where the server itself is wrong."""
