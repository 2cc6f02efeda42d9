"""Reads an uploaded image into memory, never to disk, within limits."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from t2t.serving.server.options import MEGABYTE, ServerOptions
from t2t.serving.server.problem import Problem

FIELD = "image"
NOT_IMAGES = ("application/json", "application/xml", "text/")
# It would print a line for every malformed form; the reply says so already.
logging.getLogger("python_multipart").addHandler(logging.NullHandler())
logging.getLogger("python_multipart").propagate = False

HOW = f"send the image as the body, or as the part {FIELD!r} of a form"


class HeldBytes:
    """The bytes of all uploads in memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.num = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Counts bytes until the context ends; a 503 if they are too many."""
        held = 0

        def add(num: int) -> None:
            nonlocal held
            if self.num + num > self.most:
                raise busy(1, "too many uploads are in progress")
            self.num += num
            held += num

        try:
            yield add
        finally:
            self.num -= held


def busy(seconds: int, reason: str) -> Problem:
    """A refusal for now."""
    return Problem(
        503,
        f"The server is busy ({reason}): try again in {seconds} s.",
        {"Retry-After": str(seconds)},
    )


async def read_image(
    request: Request, options: ServerOptions, add: Callable[[int], None]
) -> bytes:
    """The bytes of the image in a request; `add` counts them as they come."""
    kind, parameters = parse_options_header(request.headers.get("content-type"))
    content_type = kind.decode("latin-1").strip().lower()
    check_headers(request, content_type, options)
    form = None
    if content_type == "multipart/form-data":
        form = ImageForm(parameters.get(b"boundary", b""))
    data = bytearray()
    num = 0
    async for chunk in chunks(request, options):
        num += len(chunk)
        if num > options.max_upload_bytes:
            raise too_large(options)
        add(len(chunk))
        if form is None:
            data += chunk
        else:
            form.feed(chunk)
    if form is not None:
        data = form.image()
    if not data:
        raise Problem(400, f"The request holds no image: {HOW}.")
    return bytes(data)


def check_headers(request: Request, kind: str, options: ServerOptions) -> None:
    """Refuses a body by its length or type, before any of it is read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > options.max_upload_bytes:
        raise too_large(options)
    if kind.startswith(NOT_IMAGES):
        raise Problem(415, f"{kind} is not an image: {HOW}.")
    coding = request.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise Problem(
            415, "Content-Encoding is not supported: send the image as it is."
        )


def too_large(options: ServerOptions) -> Problem:
    """The refusal of a large upload."""
    most = options.max_upload_bytes / MEGABYTE
    return Problem(
        413, f"The upload is larger than {most:g} MB, the most that is taken."
    )


async def chunks(request: Request, options: ServerOptions) -> AsyncIterator[bytes]:
    """The body as it comes; a 408 for a client that is too slow."""
    stream = request.stream()
    try:
        async with asyncio.timeout(options.body_seconds):
            while True:
                async with asyncio.timeout(options.stall_seconds):
                    chunk = await anext(stream, None)
                if chunk is None:
                    return
                yield chunk
    except TimeoutError:
        raise Problem(
            408,
            f"The upload was too slow: it may take {options.body_seconds:g} s, "
            f"and pause for {options.stall_seconds:g} s.",
        ) from None


class ImageForm:
    """The image in a multipart form."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise Problem(400, "The form names no boundary in its Content-Type.")
        self._image: bytearray | None = None
        self._is_image = False
        self._is_complete = False
        self._name = self._value = b""
        self._disposition = b""
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._header_field,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_end,
                    "on_headers_finished": self._headers_finished,
                    "on_part_data": self._part_data,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise malformed(error) from error

    def feed(self, chunk: bytes) -> None:
        """Reads on."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise malformed(error) from error

    def image(self) -> bytearray:
        """The bytes of the one image, after the last chunk."""
        if not self._is_complete:
            raise Problem(400, "The form ends before its last boundary.")
        if self._image is None:
            raise Problem(400, f"The form has no part {FIELD!r} with an image.")
        return self._image

    def _begin(self) -> None:
        self._is_image = False
        self._disposition = b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        _, parameters = parse_options_header(self._disposition)
        name = parameters.get(b"name", b"")
        self._is_image = name == FIELD.encode() or b"filename" in parameters
        if not self._is_image:
            shown = ascii(name.decode(errors="replace")[:40])
            raise Problem(
                400,
                f"The form's part {shown} is not known: options such as top belong "
                f"into the address, the image into {FIELD!r}.",
            )
        if self._image is not None:
            raise Problem(400, "The form has several images: send one per request.")
        self._image = bytearray()

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._image is not None:
            self._image += data[start:end]

    def _end(self) -> None:
        self._is_complete = True


def malformed(error: Exception) -> Problem:
    """The refusal of a form that cannot be parsed."""
    return Problem(400, f"The form is malformed ({type(error).__name__}).")
