"""The application: the KServe v1 protocol in front of an oracle."""

import re
import threading
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from relumine import __version__
from relumine.defend.registry import Chain
from relumine.errors import BadAnswerError, MisuseError, RelumineError
from relumine.oracle.base import Answer, Array, Oracle
from relumine.serve.budgets import Budgets
from relumine.serve.guard import PerClient
from relumine.serve.keys import Client, Keys
from relumine.serve.payload import Limits, Payload, RefusalError, known_client, read_body, refused

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_REFUSALS = {
    400: "The body is not JSON.",
    403: "A defence of the model refuses some of these rows; none of them was answered.",
    413: "The body is longer than allowed.",
    422: "The body is JSON, but has too many rows, or rows of another shape; or the answer is not finite.",
    429: "The client's budget does not cover these rows; none of them was answered.",
    503: "Rows cannot be counted; none of them was answered.",
}


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
    """A FastAPI application that answers for an oracle under /v1/models/NAME; options are those of ``Guard``."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name, re.ASCII):
        raise MisuseError(f"--name: expected letters, digits, '.', '_' and '-', got {name!r}")
    defended, address = PerClient(oracle, defence, seed), f"/v1/models/{name}"
    model = _Served(defended, keys or Keys([]), budgets or Budgets(), limits or Limits())
    app = FastAPI(title=f"relumine serve: {name}", version=__version__)
    for kind in (HTTPException, RefusalError, RelumineError):
        app.exception_handler(kind)(_as_kserve_does)
    for path in ("/", "/healthz"):
        _add_fact(app, path, "Alive?", {"status": "alive"})
    _add_fact(app, "/readyz", "Ready?", {"ready": True})  # the model is loaded before the server listens
    _add_fact(app, "/v1/models", "Which models?", {"models": [name]})
    _add_fact(app, address, "Is the model ready?", {"name": name, "ready": True})
    _add_verb(app, model, address, "predict", gradients=False)
    if defended.offer.gradients != "none":
        _add_verb(app, model, address, "explain", gradients=True)
    return app


class _Served:
    """A model that is asked by many at once. The oracle is asked one question at a time."""

    def __init__(self, defended: PerClient, keys: Keys, budgets: Budgets, limits: Limits) -> None:
        self._defended, self.keys, self._budgets, self._limits = defended, keys, budgets, limits
        self.payload = Payload(defended.offer, limits.rows)
        self._lock = threading.Lock()

    async def answer(self, request: Request, *, gradients: bool) -> Response:
        """Check the client, the question and its budget, and only then ask the model."""
        client = known_client(self.keys, request.headers.raw, request.client.host if request.client else "")
        rows = self.payload.rows(await read_body(request.receive, self._limits.body_bytes))
        answer = await run_in_threadpool(self._ask, client, rows, gradients)
        return Response(self.payload.content(answer), media_type="application/json")

    def _ask(self, client: Client, rows: Array, gradients: bool) -> Answer:
        self._budgets.spend(client, len(rows))
        with self._lock:
            try:
                return self._defended(client, rows, gradients)
            except BadAnswerError as error:
                raise BadAnswerError(f"the model has no finite answer to this: {error}") from error


def _as_kserve_does(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
    status, body, headers = refused(error)
    return Response(body, status, headers, media_type="application/json")


def _add_fact(app: FastAPI, path: str, question: str, fact: dict[str, Any]) -> None:
    @app.get(path, summary=question)
    async def said() -> dict[str, Any]:
        return fact


def _add_verb(app: FastAPI, model: _Served, address: str, verb: str, *, gradients: bool) -> None:
    async def answer(request: Request) -> Response:
        return await model.answer(request, gradients=gradients)

    statuses = _REFUSALS | ({401: "The token is missing or unknown."} if model.keys.are_needed else {})
    schema = model.payload.answer_schema(gradients=gradients)
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "The answers, in the order of the rows.", **_json(schema)},
        **{status: {"description": text, **_json(_ERROR)} for status, text in statuses.items()},
    }
    app.post(
        f"{address}:{verb}",
        summary=f"{verb.capitalize()} rows",
        operation_id=verb,
        responses=responses,
        openapi_extra={"requestBody": {"required": True, **_json(model.payload.question_schema)}},
        dependencies=[Security(HTTPBearer(auto_error=False))] if model.keys.are_needed else [],
    )(answer)


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
