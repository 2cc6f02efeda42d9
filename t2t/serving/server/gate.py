"""What every request passes: host, origin and token, errors, headers, and the log."""

import asyncio
import hmac
import ipaddress
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from t2t.errors import on_one_line
from t2t.serving.server.metrics import Metrics
from t2t.serving.server.options import ServerOptions
from t2t.serving.server.problem import Problem, failure, problem_response

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CLIENT_LEFT = 499
"""The status in the log of a request whose client did not wait for the reply."""

LINGER_SECONDS = 2.0
LINGER_BYTES = 1 << 26


class Gate:
    """Passes only requests to the application that are meant for it.

    A page of another site must reach nothing: a name that another DNS server points
    here is refused, and so are requests that another site's page sends.
    """

    def __init__(
        self,
        app: ASGIApp,
        options: ServerOptions,
        metrics: Metrics,
        open_paths: Iterable[str],
    ) -> None:
        self.app = app
        self.options = options
        self.metrics = metrics
        self.open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server's own start and end
            await self.app(scope, receive, send)
            return
        reply = Reply(receive, send, may_have_body(Headers(scope=scope)))
        started = time.perf_counter()
        try:
            self.check(scope)
            await self.app(scope, reply.receive, reply.send)
        except Problem as problem:
            await problem_response(problem)(scope, reply.receive, reply.send)
        except Exception:
            print(traceback.format_exc(), file=sys.stderr, end="", flush=True)
            if not reply.status:
                await failure(scope, reply.receive, reply.send)
        finally:
            self.log(scope, reply.status, time.perf_counter() - started)

    def check(self, scope: Scope) -> None:
        """Refuses what is not for this server, or comes without its token."""
        headers = Headers(scope=scope)
        # What comes in one piece passes the limit of the connection.
        if num_bytes(scope) > self.options.max_header_bytes:
            raise Problem(
                431,
                "The address and headers are longer than "
                f"{self.options.max_header_bytes:,} bytes.",
            )
        host = headers.get("host", "")
        if not is_own_host(host, self.options.hosts):
            shown = ascii(host[:80])
            raise Problem(
                421,
                f"This server is not called {shown}: its owner can allow that name "
                "with --allow-host.",
            )
        if scope["method"] not in ("GET", "HEAD"):
            check_origin(headers, host)
        token = self.options.token
        if token and scope["path"] not in self.open_paths:
            check_token(headers, token)

    def log(self, scope: Scope, status: int, seconds: float) -> None:
        """Counts a request, and prints it if there is an access log."""
        route = scope.get("route")
        path = getattr(route, "path", "other")
        if status not in (0, CLIENT_LEFT):
            self.metrics.requests[path, status] += 1
            self.metrics.request_seconds.observe(seconds)
        else:
            self.metrics.cancelled += 1
        if self.options.access_log:
            client = scope.get("client") or ("-", 0)
            moment = time.strftime("%Y-%m-%d %H:%M:%S")
            shown = on_one_line(scope["path"][:200])
            print(
                f"{moment} {client[0]} {scope['method'][:10]} {shown} "
                f"{status or CLIENT_LEFT} {1000 * seconds:.0f} ms",
                file=sys.stderr,
                flush=True,
            )


class Reply:
    """The reply to one request as it goes out."""

    def __init__(self, receive: Receive, send: Send, has_body: bool) -> None:
        self._receive = receive
        self._send = send
        self._is_unread = has_body
        self._drains = False
        self.status = 0

    async def receive(self) -> Message:
        """The next piece of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            self._is_unread = False
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the reply, with the headers that every reply has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if self._is_unread:
                headers["Connection"] = "close"
                self._drains = True
            await self._send({**message, "headers": headers.raw})
        elif self._drains and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._drain()
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._send(message)

    async def _drain(self) -> None:
        """Reads and drops what the client still sends, for a while.

        If its connection were closed at once, it would not see the reply.
        """
        num = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while self._is_unread and num < LINGER_BYTES:
                    num += len((await self.receive()).get("body", b""))


def num_bytes(scope: Scope) -> int:
    """The length of a request's address and headers."""
    address = len(scope["path"]) + len(scope["query_string"])
    return address + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def may_have_body(headers: Mapping[str, str]) -> bool:
    """Whether the request announces a body."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def is_own_host(host: str, names: Iterable[str]) -> bool:
    """Whether a Host header is an address, localhost, or a name of this server.

    A page that lets its own name point to this address (DNS rebinding) sends its name.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.netloc != host or "@" in host or not name:
        return False
    name = name.rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    if name in {each.lower().rstrip(".") for each in names}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_origin(headers: Mapping[str, str], host: str) -> None:
    """Refuses a request that a page of another site sends."""
    site = headers.get("sec-fetch-site", "none")
    origin = headers.get("origin")
    is_own = origin is None or same_address(origin, host)
    if site not in ("same-origin", "none") or not is_own:
        raise Problem(
            403, "Pages of other sites may not use this server; ask it directly."
        )


def same_address(origin: str, host: str) -> bool:
    """Whether an origin is this host, whatever proxy speaks TLS before it."""
    try:
        page = urlsplit(origin)
        own = urlsplit(f"{page.scheme}://{host}")
        default = {"http": 80, "https": 443}.get(page.scheme)
        ports = page.port or default, own.port or default
    except ValueError:
        return False
    return (
        default is not None and page.hostname == own.hostname and (ports[0] == ports[1])
    )


def check_token(headers: Mapping[str, str], token: str) -> None:
    """Refuses a request without the token, in the same time whatever is sent."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    is_right = hmac.compare_digest(given.strip().encode(), token.encode())
    if scheme.lower() != "bearer" or not is_right:
        raise Problem(
            401,
            "This server asks for its token: send the header "
            "'Authorization: Bearer TOKEN'.",
            {"WWW-Authenticate": "Bearer"},
        )
