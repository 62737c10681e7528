"""Forwarding: an ASGI application that is a server elsewhere, for a guard to stand in front of."""

import os
from typing import Any
from urllib.parse import urlsplit

import httpx

from relumine.errors import OracleFailedError
from relumine.oracle.http.endpoint import Endpoint
from relumine.oracle.http.protocol import protocol_of
from relumine.serve.guard import Send
from relumine.serve.payload import Receive

# Headers that are about one connection (RFC 9110, 7.6.1), and those that httpx writes itself.
_OF_A_CONNECTION = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding"),
    *("upgrade", "host", "content-length"),
}
# Headers of an answer that a client needs to read it.
_HANDED_BACK = ("content-type", "content-encoding", "content-length", "retry-after")


class Forwarding:
    """Hands requests on to the server of an endpoint, and its answers back.

    The environment variable that the endpoint names (RELUMINE_AUTHORIZATION), if it is set, is the Authorization header
    of every request; else the client's own is.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        endpoint.require_authorization()
        addresses = [protocol_of(endpoint).url(gradients=gradients) for gradients in (False, True)]
        self._servers = {urlsplit(url).path: url for url in reversed(addresses)}
        self._first = httpx.URL("{0.scheme}://{0.netloc}".format(urlsplit(endpoint.url)))
        self._secret = os.environ.get(endpoint.authorization_env, "")
        # Its own transport, so that no proxy of the environment comes between; connections are kept for the next one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(limits=limits), timeout=endpoint.timeout)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One request and its answer, or the server's start and end."""
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await self._client.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return
        request = {**self._request(scope), "content": (await receive()).get("body")}
        try:
            answer = await self._begun(request)
        except httpx.HTTPError as error:
            status = 504 if isinstance(error, httpx.TimeoutException) else 502
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": "the model server does not answer"}'})
            return
        try:
            kept = [(name, answer.headers[name]) for name in _HANDED_BACK if name in answer.headers]
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in kept]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": pairs})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except httpx.HTTPError as error:
            raise OracleFailedError("the answer of the model server was cut off") from error
        finally:
            await answer.aclose()

    async def _begun(self, request: dict[str, Any]) -> httpx.Response:
        """The answer, its body still to come; once more if the server closed a kept connection just as it was used."""
        try:
            return await self._client.send(self._client.build_request(**request), stream=True)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return await self._client.send(self._client.build_request(**request), stream=True)

    def _request(self, scope: Any) -> dict[str, Any]:
        path = scope["raw_path"].decode("ascii")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        headers = {name: value for name, value in headers.items() if name not in _OF_A_CONNECTION}
        headers["accept-encoding"] = "identity"
        if self._secret:
            headers["authorization"] = self._secret
        url = self._servers.get(path) or self._first.copy_with(raw_path=scope["raw_path"])
        return {"method": scope["method"], "url": url, "headers": headers}
