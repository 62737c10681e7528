"""The protocols of model servers: where to ask, with which body, and how to read the answer."""

import re
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from relumine.errors import BadAnswerError, MisuseError
from relumine.oracle.base import Array, Offer
from relumine.oracle.http.endpoint import Endpoint, ProtocolName

_STEP = re.compile(r"([^.\[\]]+)|\[(\d*)\]")
ABSENT = "-"
_NUMBER = "a number"


class Protocol(ABC):
    """One way of asking. Rows are n×d; bodies are plain values, with arrays where lists of numbers may stand."""

    values_at: ClassVar[str]
    explained_values_at: ClassVar[str]
    gradients_at: ClassVar[str]

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._offer: Offer = endpoint.offer
        self._values_at = _given(endpoint.values_at, self.values_at)
        self._explained_values_at = _given(endpoint.explained_values_at, self.explained_values_at)
        self._gradients_at = _given(endpoint.gradients_at, self.gradients_at)
        for place in (self._values_at, self._explained_values_at, self._gradients_at):
            self._check_place(place)

    @property
    def values_come_with_gradients(self) -> bool:
        """Whether an explanation has the values in it; else they are asked for on their own."""
        return self._explained_values_at != ABSENT

    @abstractmethod
    def url(self, *, gradients: bool) -> str:
        """Where predictions, or explanations, are asked for."""

    @abstractmethod
    def body(self, rows: Array) -> dict[str, Any]:
        """The request for these rows."""

    def values(self, rows: int, body: object) -> Array:
        """n×K values from an answer to a prediction."""
        return self._values(rows, body, self._values_at)

    def explained_values(self, rows: int, body: object) -> Array:
        """n×K values from an answer to an explanation."""
        return self._values(rows, body, self._explained_values_at)

    def gradients(self, rows: int, body: object) -> Array:
        """n×R×d gradients from an answer to an explanation."""
        shape = (rows, self._offer.gradient_rows, self._offer.dimension)
        return self._array("gradients", body, self._gradients_at, shape)

    def _values(self, rows: int, body: object, place: str) -> Array:
        return self._array("values", body, place, (rows, self._offer.outputs))

    def _array(self, what: str, body: object, place: str, shape: tuple[int, ...]) -> Array:
        """The numbers at a place, in the precision of the target and of the promised shape."""
        found = self._found(body, place)
        rows = len(found) if isinstance(found, list | np.ndarray) else None
        if rows != shape[0]:
            got = f"{rows} rows" if rows is not None else _kind(found)
            raise BadAnswerError(
                f"{what}: expected {shape[0]} rows at {place or 'the top'!r}, got {got}: the batch came back cut or "
                "changed; if this server takes one row at a time, say batch = 1"
            )
        try:
            array = np.asarray(found, dtype=np.float64)
            if self._offer.dtype == "float32":
                array = _single(array)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadAnswerError(
                f"{what}: expected numbers of shape {shape} at {place or 'the top'!r}, got {_first_odd(found)}"
            ) from error
        if array.size != np.prod(shape):
            raise BadAnswerError(f"{what}: expected numbers of shape {shape} at {place!r}, got {array.shape}")
        return array.reshape(shape)

    def _found(self, body: object, place: str) -> Any:
        return found_at(body, place)

    def _check_place(self, place: str) -> None:
        if place != ABSENT and _STEP.sub("", place).strip("."):
            raise MisuseError(f"answers: expected a place like explanations[].maps[0].x, got {place!r}")


class KServeV1(Protocol):
    """POST …/v1/models/NAME:predict and :explain with {"instances": […]}."""

    values_at = "predictions"
    explained_values_at = "predictions"
    gradients_at = "explanations"

    def url(self, *, gradients: bool) -> str:
        """:predict, or :explain of the explainer."""
        if gradients:
            return f"{self._endpoint.explainer or self._endpoint.url}:explain"
        return f"{self._endpoint.url}:predict"

    def body(self, rows: Array) -> dict[str, Any]:
        """Instances in the shape of the model's inputs."""
        return {"instances": rows.reshape(-1, *self._offer.inputs), **self._endpoint.parameters}


class TorchServe(KServeV1):
    """POST /predictions/NAME and /explanations/NAME; the answer is a bare list unless places are given."""

    values_at = ""
    explained_values_at = ABSENT
    gradients_at = ""

    def url(self, *, gradients: bool) -> str:
        """/predictions/NAME or /explanations/NAME."""
        verb = "explanations" if gradients else "predictions"
        address = (self._endpoint.explainer if gradients else None) or self._endpoint.url
        return re.sub(r"/(predictions|explanations)/(?!.*/(predictions|explanations)/)", f"/{verb}/", address)


class OpenInferenceV2(Protocol):
    """POST …/v2/models/NAME/infer with typed tensors. There is no verb for explanations: an explainer is a model.

    Places are names of output tensors.
    """

    values_at = "predictions"
    explained_values_at = "predictions"
    gradients_at = "explanations"

    def url(self, *, gradients: bool) -> str:
        """/infer of the model, or of the model that explains."""
        return f"{(self._endpoint.explainer if gradients else None) or self._endpoint.url}/infer"

    def body(self, rows: Array) -> dict[str, Any]:
        """One tensor, flat in row-major order."""
        datatype = {"float32": "FP32", "float64": "FP64"}[self._offer.dtype]
        tensor = {
            "name": self._endpoint.input_name,
            "shape": [len(rows), *self._offer.inputs],
            "datatype": datatype,
            "data": rows.ravel(),
        }
        # The id is optional, but KServe models that hand it back fail without one.
        return {"id": "relumine", "inputs": [tensor], **self._endpoint.parameters}

    def _found(self, body: object, place: str) -> Any:
        outputs = body.get("outputs") if isinstance(body, dict) else None
        if not isinstance(outputs, list):
            raise BadAnswerError(f"expected an answer with output tensors at 'outputs', got {_kind(body)}")
        dicts = [tensor for tensor in outputs if isinstance(tensor, dict)]
        tensors = {tensor["name"]: tensor for tensor in dicts if isinstance(tensor.get("name"), str)}
        if place not in tensors:
            names = ", ".join(map(_brief, list(tensors)[:8])) or "none"
            raise BadAnswerError(f"expected an output tensor named {place!r}, got {names}; name it in [answers]")
        return _shaped(tensors[place])

    def _check_place(self, place: str) -> None:
        if not place:
            raise MisuseError("answers: expected the name of an output tensor, got ''")


_PROTOCOLS: dict[ProtocolName | None, type[Protocol]] = {
    "kserve-v1": KServeV1,
    "open-inference-v2": OpenInferenceV2,
    "torchserve": TorchServe,
}


def protocol_of(endpoint: Endpoint) -> Protocol:
    """The protocol that this endpoint speaks."""
    return _PROTOCOLS[endpoint.protocol](endpoint)


def found_at(body: object, place: str) -> Any:
    """What sits at a place: names of fields, [] for each element of a list, [2] for its third."""
    steps = [(step[1], step[2]) for step in _STEP.finditer(place)]
    return _walk(body, steps, place)


def _walk(here: Any, steps: list[tuple[str | None, str | None]], place: str) -> Any:
    for i, (name, number) in enumerate(steps):
        if name is not None:
            if not isinstance(here, dict) or name not in here:
                has = f"one with {', '.join(map(_brief, list(here)[:8]))}" if isinstance(here, dict) else _kind(here)
                raise BadAnswerError(
                    f"expected {name!r} in the answer (at {place!r}), got {has}; say in [answers] where the numbers "
                    f"are, or {ABSENT!r} for explained_values that are not there"
                )
            here = here[name]
            continue
        if not isinstance(here, list | np.ndarray):
            raise BadAnswerError(f"expected a list in the answer (at {place!r}), got {_kind(here)}")
        if number == "":
            return [_walk(element, steps[i + 1 :], place) for element in here]
        if int(number or 0) >= len(here):
            raise BadAnswerError(f"expected element {number} of a list (at {place!r}), got a list of {len(here)}")
        here = here[int(number or 0)]
    return here


def _shaped(tensor: dict[str, Any]) -> Any:
    """A tensor's numbers in its shape."""
    data, shape = tensor.get("data"), tensor.get("shape", ())
    try:
        return np.asarray(data, dtype=np.float64).reshape([int(n) for n in shape])
    except (TypeError, ValueError, OverflowError) as error:
        raise BadAnswerError(
            f"expected a tensor {_brief(tensor.get('name'))} with numbers of its shape, got shape {_brief(shape)} and "
            f"{_first_odd(data)}"
        ) from error


def _single(numbers: Array) -> Array:
    """As a server that computes in float32 has them: it may write just the digits that tell one of these from the next.

    If it writes all digits there is nothing to do, which a few of many numbers tell.
    """
    some = numbers.ravel()[:: numbers.size // 64 + 1]
    with np.errstate(over="ignore"):
        if np.array_equal(some.astype(np.float32), some):
            return numbers
        return numbers.astype(np.float32).astype(np.float64)


def _given(place: str | None, default: str) -> str:
    return default if place is None else place


def _kind(value: object) -> str:
    """What a JSON value is, for a message."""
    if value is None:
        return "nothing"
    names = {dict: "an object", list: "a list", np.ndarray: "a list", str: "a text", bool: "a truth value"}
    return names.get(type(value), _NUMBER)


def _brief(value: object) -> str:
    """A value that the server chose, for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _first_odd(value: Any) -> str:
    """What it is that kept numbers from being numbers."""
    if value is None:
        return "null, which is how servers write NaN and infinity"
    if isinstance(value, list):
        lengths = {len(part) if isinstance(part, list | np.ndarray) else 0 for part in value}
        if len(lengths) > 1:
            return f"lists of different lengths ({', '.join(map(str, sorted(lengths)[:4]))})"
        return next((odd for odd in map(_first_odd, value) if odd != _NUMBER), _NUMBER)
    return _NUMBER if isinstance(value, np.ndarray) else _kind(value)
