"""The application: the KServe v1 protocol in front of an oracle."""

import re
import threading
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException as AnyHTTPException

from relumine import __version__
from relumine.defend.registry import Chain
from relumine.errors import BadAnswerError, MisuseError, RelumineError
from relumine.oracle.base import Answer, Array, Oracle
from relumine.serve.budgets import Budgets
from relumine.serve.defended import PerClient
from relumine.serve.keys import Client, Keys
from relumine.serve.payload import Limits, Payload, RefusalError, status_of

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_REFUSALS = {
    400: "The body is not JSON.",
    403: "A defence of the model refuses some of these rows; none of them was answered.",
    413: "The body is longer than allowed.",
    422: "The body is JSON, but has too many rows, or rows of another shape; or the answer is not finite.",
    429: "The client's budget does not cover these rows; none of them was answered.",
    503: "Rows cannot be counted; none of them was answered.",
}


class Served:
    """A model that is asked by many at once. The oracle is asked one question at a time.

    defence, seed: as those of Guard
    """

    def __init__(
        self,
        oracle: Oracle,
        name: str,
        keys: Keys,
        budgets: Budgets,
        limits: Limits,
        defence: Chain | None,
        seed: int | None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name, re.ASCII):
            raise MisuseError(f"--name: expected letters, digits, '.', '_' and '-', got {name!r}")
        self.name = name
        self._defended = PerClient(oracle, defence, seed)
        self.offer = self._defended.offer
        self.payload = Payload(self.offer, limits.rows)
        self.keys = keys
        self._budgets = budgets
        self._limits = limits
        self._lock = threading.Lock()

    async def answer(self, request: Request, *, gradients: bool) -> Response:
        """Check the client, the question and its budget, and only then ask the model."""
        client = self._known(request)
        rows = self._understood(await self._body(request))
        try:
            answer = await run_in_threadpool(self._ask, client, rows, gradients)
        except RelumineError as error:
            status, headers = status_of(error)
            raise HTTPException(status, str(error), headers) from error
        return Response(self.payload.content(answer), media_type="application/json")

    def _known(self, request: Request) -> Client:
        client = self.keys.who(request.headers.raw, request.client.host if request.client else "")
        if client is None:
            raise HTTPException(401, "expected a token that is known here", {"WWW-Authenticate": "Bearer"})
        return client

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than allowed, whatever its header says about its length."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._limits.body_bytes:
                raise HTTPException(413, f"expected at most {self._limits.body_bytes} bytes", {"Connection": "close"})
        return bytes(body)

    def _understood(self, body: bytes) -> Array:
        try:
            return self.payload.rows(body)
        except RefusalError as error:
            raise HTTPException(error.status, str(error)) from error

    def _ask(self, client: Client, rows: Array, gradients: bool) -> Answer:
        self._budgets.spend(client, len(rows))
        with self._lock:
            try:
                return self._defended(client, rows, gradients)
            except BadAnswerError as error:
                raise BadAnswerError(f"the model has no finite answer to this: {error}") from error


def make_app(
    oracle: Oracle,
    name: str,
    *,
    keys: Keys | None = None,
    budgets: Budgets | None = None,
    limits: Limits | None = None,
    defence: Chain | None = None,
    seed: int | None = None,
) -> FastAPI:
    """A FastAPI application that answers for an oracle under /v1/models/NAME, behind a defence."""
    model = Served(oracle, name, keys or Keys([]), budgets or Budgets(), limits or Limits(), defence, seed)
    app = FastAPI(title=f"relumine serve: {name}", version=__version__)
    app.exception_handler(AnyHTTPException)(_as_kserve_does)
    _add_health(app, model)
    _add_verb(app, model, "predict", gradients=False)
    if model.offer.gradients != "none":
        _add_verb(app, model, "explain", gradients=True)
    return app


def _as_kserve_does(_: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


def _add_health(app: FastAPI, model: Served) -> None:
    """Whether the server is alive, and whether the model is loaded: it is, before the server listens."""

    @app.get("/", summary="Alive?")
    @app.get("/healthz", summary="Alive?", operation_id="healthz")
    async def alive() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz", summary="Ready?")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/v1/models", summary="Which models?")
    async def models() -> dict[str, list[str]]:
        return {"models": [model.name]}

    @app.get(f"/v1/models/{model.name}", summary="Is the model ready?")
    async def model_ready() -> dict[str, str | bool]:
        return {"name": model.name, "ready": True}


def _add_verb(app: FastAPI, model: Served, verb: str, *, gradients: bool) -> None:
    async def answer(request: Request) -> Response:
        return await model.answer(request, gradients=gradients)

    statuses = _REFUSALS | ({401: "The token is missing or unknown."} if model.keys.are_needed else {})
    schema = model.payload.answer_schema(gradients=gradients)
    responses: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The answers, in the order of the rows.",
            "content": {"application/json": {"schema": schema}},
        },
        **{status: {"description": text, **_json(_ERROR)} for status, text in statuses.items()},
    }
    body = {"required": True, **_json(model.payload.question_schema)}
    app.post(
        f"/v1/models/{model.name}:{verb}",
        summary=f"{verb.capitalize()} rows",
        operation_id=verb,
        responses=responses,
        openapi_extra={"requestBody": body},
        dependencies=[Security(HTTPBearer(auto_error=False))] if model.keys.are_needed else [],
    )(answer)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
