"""Lets only proven requests reach /api/attempts, and proves the answers to them.

The head of a request is checked before its body is read. The body is checked before the end of it
is passed on, so a route that has read its body knows that the runner sent it. See decision 016.
"""

from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retarget.core.errors import Unauthorized
from retarget.core.tokens import runner_key
from retarget.runner.proof import (
    DIGEST_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    TRAILER,
    TRAILER_BYTES,
    DigestedBody,
    TrailedBody,
    Trailer,
    digest_of,
    is_same,
    prove_answer,
    prove_request,
)
from retarget.server.auth import NO_PROOF, PROVEN_KEY
from retarget.server.errors import error_response

_ATTEMPTS, _HANDSHAKE = "/api/attempts/", "proof"
_STREAMED = "application/octet-stream"  # answers of this type have a trailer
_JSON = "application/json"
_UNPROVEN = (b"content-type", b"range", b"if-range", b"if-none-match", b"if-modified-since")


class RunnerProofs:
    def __init__(self, secret: bytes, app: ASGIApp) -> None:
        self._secret = secret
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(_ATTEMPTS):
            await self._app(scope, receive, send)
            return
        key, _, resource = path[len(_ATTEMPTS) :].partition("/")
        exchange = _Exchange(runner_key(self._secret, key), scope, receive, send)
        if not exchange.is_proven:
            await _refuse(scope, receive, send)
        elif resource == _HANDSHAKE and scope["method"] == "GET":  # as its route does, but sooner
            await Response(status_code=204)(scope, receive, exchange.send)
        else:
            proven = {**scope, "headers": exchange.headers(), PROVEN_KEY: key}
            await self._app(proven, exchange.receive, exchange.send)
            if exchange.is_altered:
                await _refuse(scope, receive, send)


class _Exchange:
    """One request of a runner and the answer to it."""

    def __init__(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._key, self._nonce = key, headers.get(NONCE_HEADER, "")
        digest = headers.get(DIGEST_HEADER, "")
        expected = prove_request(key, self._nonce, scope["method"], _target(scope), digest)
        self.is_proven = is_same(headers.get(PROOF_HEADER, ""), expected)
        self.is_altered = False  # the body is not the one that the head is about
        self._has_ended = False  # the whole body was received
        self._scope = scope
        self._is_streamed = is_streamed = digest == TRAILER
        trailer = Trailer(key, "request", self._nonce)
        self._body = TrailedBody(trailer) if is_streamed else DigestedBody(digest)
        self._receive, self._send = receive, send
        self._start: Message = {}
        self._answer = bytearray()
        self._trailer: Trailer | None = None  # of the answer, if it is streamed

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers without those that could change the answer and are not proven."""
        is_json = self._scope["method"] == "POST" and not self._is_streamed
        kept = [pair for pair in self._scope["headers"] if pair[0] not in _UNPROVEN]
        return [*kept, (b"content-type", (_JSON if is_json else _STREAMED).encode())]

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or self._has_ended:
            return message
        body = self._body.add(message.get("body", b""))
        if not message.get("more_body", False):
            self._has_ended = True
            if not self._body.is_proven():
                self.is_altered = True
                raise Unauthorized(NO_PROOF)
        return {**message, "body": body}

    async def _read_rest(self) -> None:
        """Read what a route left: only the answer to a whole, proven body is proven."""
        with suppress(Unauthorized):
            while not self._has_ended:
                if (await self.receive())["type"] != "http.request":
                    self.is_altered = True  # the runner has gone
                    return

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._read_rest()
        if self.is_altered:
            return  # the refusal is sent instead
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._trailer is not None:
            await self._send_chunk(message, self._trailer)
        else:
            self._answer += message.get("body", b"")
            if not message.get("more_body", False):
                content = bytes(self._answer)
                await self._send(self._with_proof(self._start, digest_of(content)))
                await self._send({"type": "http.response.body", "body": content})

    async def _begin(self, message: Message) -> None:
        headers = MutableHeaders(raw=list(message["headers"]))
        self._start = {**message, "headers": headers.raw}
        if headers.get("content-type") == _STREAMED:
            if "content-length" in headers:
                headers["content-length"] = str(int(headers["content-length"]) + TRAILER_BYTES)
            self._trailer = Trailer(self._key, "answer", self._nonce)
            await self._send(self._with_proof(self._start, TRAILER))

    async def _send_chunk(self, message: Message, trailer: Trailer) -> None:
        chunk, more = trailer.add(message.get("body", b"")), message.get("more_body", False)
        body = chunk if more else chunk + trailer.value()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def _with_proof(self, start: Message, digest: str) -> Message:
        proof = prove_answer(self._key, self._nonce, start["status"], digest)
        added = {DIGEST_HEADER: digest, PROOF_HEADER: proof}
        pairs = [(name.lower().encode(), value.encode()) for name, value in added.items()]
        return {**start, "headers": [*start["headers"], *pairs]}


def _target(scope: Scope) -> str:
    """Return the path and query of a request as it was sent."""
    raw, query = scope["raw_path"], scope["query_string"]
    return (raw + b"?" + query if query else raw).decode("latin-1")


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(Request(scope), Unauthorized(NO_PROOF))
    await response(scope, receive, send)
