"""uvicorn's HTTP connection with limits for slow and too many clients."""

import asyncio
import json
import logging
from typing import Any

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from t2t.serving.server.options import ServerOptions

FLUSH_SECONDS = 5.0
"""How long a client may take to read a reply after which its connection closes."""

# It would print what the reply says already, such as for malformed requests.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())
logging.getLogger("uvicorn").propagate = False


def guarded(options: ServerOptions) -> type[H11Protocol]:
    """The class of connections with these limits."""

    class Guarded(GuardedProtocol):
        limits = options

    return Guarded


class GuardedProtocol(H11Protocol):
    """A connection that ends when its client is too slow."""

    limits = ServerOptions()

    def __init__(self, config: Config, *args: Any, **keywords: Any) -> None:
        super().__init__(config, *args, **keywords)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses connections above the limit."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            body = error("The server has too many connections: try again in 1 s.")
            transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json"
                b"\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: "
                + b"%d\r\n\r\n" % len(body)
                + body
            )
            self._end()
        else:
            self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timers."""
        self._cancel_timers()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Reads on; the time for headers runs while a request is incomplete."""
        if self.transport.is_closing():
            return
        try:
            super().data_received(data)
        except h11.ProtocolError:
            self.transport.abort()
            return
        self._watch_headers()

    def on_response_complete(self) -> None:
        """Closes in the end even if the client does not read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()
        else:
            self._watch_headers()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection."""
        super().timeout_keep_alive_handler()
        self._end()

    def pause_writing(self) -> None:
        """Cuts the connection if the client reads nothing for some seconds."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(
            self.limits.stall_seconds, self.transport.abort
        )

    def resume_writing(self) -> None:
        """Keeps the connection: the client reads again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, or has too long headers."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # the body of a request is malformed
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        self._refuse(
            400,
            "This is not valid HTTP, or its headers are longer than "
            f"{self.limits.max_header_bytes:,} bytes.",
        )

    def _watch_headers(self) -> None:
        """Starts the time for headers, or ends it if a request is complete."""
        in_request = self.cycle is not None and not self.cycle.response_complete
        is_idle = self.timeout_keep_alive_task is not None
        if in_request or is_idle or self.transport.is_closing():
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(
                self.limits.header_seconds, self._headers_are_late
            )

    def _headers_are_late(self) -> None:
        self._header_timer = None
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            seconds = self.limits.header_seconds
            self._refuse(408, f"The request's headers took more than {seconds:g} s.")
        else:
            self.transport.abort()

    def _refuse(self, status: int, sentence: str) -> None:
        """Sends an error that never reaches the application, and closes."""
        body = error(sentence)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=b""),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self._end()

    def _end(self) -> None:
        """Closes the connection; cuts it if the client does not read the rest."""
        self._cancel_timers()
        self.transport.close()
        self.loop.call_later(FLUSH_SECONDS, self.transport.abort)

    def _cancel_timers(self) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._write_timer = None


def error(sentence: str) -> bytes:
    """An error as JSON."""
    return json.dumps({"error": sentence}).encode()
