"""Payloads: which requests are understood, checked before anything is computed, and described in OpenAPI."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import orjson
from pydantic import AllowInfNan, Field, Strict, ValidationError, create_model

from relumine.errors import BadAnswerError, BudgetError, MisuseError, RefusedError, StoreError
from relumine.oracle.base import Answer, Array, Offer
from relumine.serve.budgets import SpentError
from relumine.serve.keys import Client, Keys

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# Beyond this a float32 network may overflow.
_LARGEST = 1e15


@dataclass(frozen=True)
class Limits:
    """What one request may ask for."""

    rows: int = 256
    body_bytes: int = 16 * 2**20

    def __post_init__(self) -> None:
        if self.rows < 1 or self.body_bytes < 1:
            raise MisuseError(f"limits: expected at least 1 row and 1 byte, got {self.rows} and {self.body_bytes}")


class RefusalError(Exception):
    """A request that is not answered; ``status`` is what HTTP calls it."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, {name.replace("_", "-"): text for name, text in headers.items()}


def refused(error: Exception) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of a request that is not answered for this reason."""
    body = orjson.dumps({"error": str(error)})
    if isinstance(error, RefusalError):
        return error.status, body, error.headers
    if isinstance(error, SpentError) and error.wait is not None:
        return 429, body, {"retry-after": str(error.wait)}
    statuses = {BudgetError: 429, RefusedError: 403, StoreError: 503, BadAnswerError: 422}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), 502), body, {}


def known_client(keys: Keys, headers: list[tuple[bytes, bytes]], address: str) -> Client:
    """Who sends these headers from this address."""
    client = keys.who(headers, address)
    if client is None:
        raise RefusalError(401, "expected a token that is known here", www_authenticate="Bearer")
    return client


async def read_body(receive: Receive, most: int) -> bytes:
    """A request's body, read no further than allowed, whatever its header says about its length."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message["type"] == "http.request" and message.get("more_body", False)
        if size > most:
            raise RefusalError(413, f"expected at most {most} bytes", connection="close")
    return b"".join(parts)  # a single one is not copied


class Payload:
    """The bodies of requests and answers of a model with this offer."""

    def __init__(self, offer: Offer, most_rows: int) -> None:
        self._offer = offer
        low, high = offer.box or (-_LARGEST, _LARGEST)
        row: Any = Annotated[float, Strict(), AllowInfNan(False), Field(ge=low, le=high)]
        for size in reversed(offer.inputs):
            row = Annotated[list[row], Field(min_length=size, max_length=size)]
        instances = Annotated[list[row], Field(min_length=1, max_length=most_rows)]
        self._question: Any = create_model("Question", instances=(instances, ...))

    def rows(self, content: bytes) -> Array:
        """The questions in a request's body, as flat rows."""
        try:
            instances = self._question.model_validate_json(content).instances
        except ValidationError as error:
            raise _explained(error) from None
        return np.asarray(instances, dtype=np.float64).reshape(len(instances), self._offer.dimension)

    def content(self, answer: Answer) -> bytes:
        """The body of an answer, its numbers with as many digits as the model's precision has."""
        body: dict[str, Any] = {"predictions": answer.values.astype(self._offer.dtype)}
        if answer.gradients is not None:
            shape = (len(answer), self._offer.gradient_rows, *self._offer.inputs)
            body["explanations"] = answer.gradients.astype(self._offer.dtype).reshape(shape)
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)

    @property
    def question_schema(self) -> dict[str, Any]:
        """What a request's body must be, for OpenAPI."""
        return dict(self._question.model_json_schema())

    def answer_schema(self, *, gradients: bool) -> dict[str, Any]:
        """What an answer's body is, for OpenAPI."""
        values = _arrays(None, self._offer.outputs)
        maps = _arrays(None, self._offer.gradient_rows, *self._offer.inputs)
        properties = {"predictions": values, **({"explanations": maps} if gradients else {})}
        return {"type": "object", "properties": properties, "required": list(properties)}


def _arrays(*sizes: int | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "number"}
    for size in reversed(sizes):
        bounds = {} if size is None else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return schema


def _explained(error: ValidationError) -> RefusalError:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return RefusalError(400, f"expected JSON, got something else: {first['msg']}")
    place = "".join(f"[{step}]" if isinstance(step, int) else step for step in first["loc"]) or "the body"
    return RefusalError(422, f"{place}: {first['msg']}")
