"""The protocols of model servers: where to ask, with which body, and how to read the answer."""

import re
from collections.abc import Mapping
from functools import cache, cached_property, reduce
from typing import Any, ClassVar

import numpy as np

from relumine.errors import BadAnswerError, MisuseError
from relumine.oracle.base import Answer, Array, Offer
from relumine.oracle.http.endpoint import Endpoint, ProtocolName
from relumine.oracle.http.places import Step, merged, part_at, path_to, placed, texts_in

_STEP = re.compile(r"([^.\[\]]+)|\[(\d*)\]")
ABSENT = "-"
_NUMBER = "a number"
# What stands for inputs in a template: all of them or a single one, as lists or as objects by the names of columns.
_WORDS = ROWS, ROW, RECORDS, RECORD = "$rows", "$row", "$records", "$record"


class Protocol:
    """One way of asking: POST a template with the inputs in the place of a word.

    Rows are n×d; bodies are plain values, with arrays where lists of numbers may stand.
    """

    values_at: ClassVar[str] = "predictions"
    explained_values_at: ClassVar[str] = "predictions"
    gradients_at: ClassVar[str] = "explanations"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._template = self._template_of(endpoint)
        self._offer: Offer = endpoint.offer
        said = (endpoint.values_at, endpoint.explained_values_at, endpoint.gradients_at)
        usual = (self.values_at, self.explained_values_at, self.gradients_at)
        places = [own if place is None else place for place, own in zip(said, usual, strict=True)]
        self._values_at, self._explained_values_at, self._gradients_at = places
        for place in places:
            self._check_place(place)

    @property
    def values_come_with_gradients(self) -> bool:
        """Whether an explanation has the values in it; else they are asked for on their own."""
        return self._explained_values_at != ABSENT

    def exchanges(self, *, gradients: bool) -> tuple[bool, ...]:
        """What is asked for an answer, by whether with gradients: cheap values first where these do not come along."""
        return (gradients,) if self.values_come_with_gradients or not gradients else (False, True)

    def read(self, rows: int, said: Mapping[bool, object]) -> Answer:
        """The answer in the bodies of all exchanges."""
        values = self.values(rows, said[False]) if False in said else self.explained_values(rows, said[True])
        return Answer(values, self.gradients(rows, said[True]) if True in said else None)

    def numbers(self, *, gradients: bool) -> int:
        """In the answer to one row."""
        return self._offer.outputs + (self._offer.gradient_rows * self._offer.dimension if gradients else 0)

    def url(self, *, gradients: bool) -> str:
        """Where predictions, or explanations, are asked for: the address, or that of the explainer."""
        return (self._endpoint.explainer if gradients else None) or self._endpoint.url

    def body(self, rows: Array) -> Any:
        shaped = rows.reshape(-1, *self._offer.inputs)
        columns = self._endpoint.columns
        filled: dict[str, Any] = {ROWS: shaped, ROW: shaped[0]}
        if columns:
            records = [dict(zip(columns, row.tolist(), strict=True)) for row in rows]
            filled |= {RECORDS: records, RECORD: records[0]}
        body = _filled(self._template, filled)
        return {**body, **self._endpoint.parameters} if isinstance(body, dict) else body

    def _template_of(self, endpoint: Endpoint) -> Any:
        return {"instances": ROWS}

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

    def asked(self, body: object) -> Array:
        """The rows of a request: what ``body`` was made of."""
        found, d = self._rows_in(body), self._offer.dimension
        try:
            numbers = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadAnswerError(f"expected rows of {d} numbers each, got {_first_odd(found)}") from error
        if not numbers.size or numbers.size % d or not np.isfinite(numbers).all():
            raise BadAnswerError(f"expected rows of {d} finite numbers each, got shape {numbers.shape}")
        return numbers.reshape(-1, d)

    def _rows_in(self, body: object) -> Any:
        found = part_at(body, self._rows_at)
        records = [found] if isinstance(found, dict) else found
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            return found
        return [[part_at(record, [name]) for name in self._endpoint.columns] for record in records]

    @cached_property
    def _rows_at(self) -> list[str | int]:
        return path_to(_WORDS, self._template)

    def answer(self, values: Array | None, maps: Array | None) -> Any:
        """What a server says that has these values and maps to say, each in the shape in which they are shown."""
        at = self._values_at if maps is None else self._explained_values_at
        shown = [(at, values), (self._gradients_at, maps)]
        return self._said([(place, numbers) for place, numbers in shown if numbers is not None])

    def _said(self, shown: list[tuple[str, Array]]) -> Any:
        return reduce(merged, (placed(numbers, _steps(place)) for place, numbers in shown), None)

    def shapes(self, body: object, *, gradients: bool) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """The shapes that the values and the maps of one row have in an answer, None for what it does not have."""
        at = self._explained_values_at if gradients else self._values_at
        values = None if at == ABSENT else np.shape(self._found(body, at))[1:]
        return values, np.shape(self._found(body, self._gradients_at))[1:] if gradients else None

    def _values(self, rows: int, body: object, place: str) -> Array:
        if self._offer.values == "label":
            found = self._found(body, place)
            if isinstance(found, np.ndarray | list) and not any(isinstance(one, np.ndarray | list) for one in found):
                return self._one_hot(rows, list(found), place)
        return self._array("values", body, place, (rows, self._offer.outputs))

    def _one_hot(self, rows: int, labels: list[Any], place: str) -> Array:
        """n×K from n labels, which are numbers or words; of one output, whether it is the second."""
        known = {str(name): i for i, name in enumerate(self._endpoint.classes or range(max(2, self._offer.outputs)))}
        plain = [str(int(one) if isinstance(one, float) and one.is_integer() else one) for one in labels]
        if len(labels) != rows or any(label not in known for label in plain):
            odd = next((label for label in plain if label not in known), f"{len(labels)} of them")
            raise BadAnswerError(
                f"values: expected {rows} labels among {', '.join(list(known)[:8])} at {place or 'the top'!r}, got "
                f'{_brief(odd)}; name them in classes = […], and say values = "real" if they are no labels'
            )
        one_hot: Array = np.eye(len(known))[[known[label] for label in plain]]
        return one_hot[:, -self._offer.outputs :]

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
        *outer, d = shape
        if what == "gradients" and self._offer.contributions and array.size == np.prod(outer, dtype=int) * (d + 1):
            array = array.reshape(*outer, d + 1)[..., :-1]  # the last is the base value, which TreeSHAP adds to
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

    def url(self, *, gradients: bool) -> str:
        return f"{super().url(gradients=gradients)}:{'explain' if gradients else 'predict'}"


class TorchServe(Protocol):
    """POST /predictions/NAME and /explanations/NAME; the answer is a bare list unless places are given."""

    values_at = ""
    explained_values_at = ABSENT
    gradients_at = ""

    def url(self, *, gradients: bool) -> str:
        verb = "explanations" if gradients else "predictions"
        address = super().url(gradients=gradients)
        return re.sub(r"/(predictions|explanations)/(?!.*/(predictions|explanations)/)", f"/{verb}/", address)


class OpenInferenceV2(Protocol):
    """POST …/v2/models/NAME/infer with typed tensors. There is no verb for explanations: an explainer is a model.

    Places are names of output tensors.
    """

    def url(self, *, gradients: bool) -> str:
        return f"{super().url(gradients=gradients)}/infer"

    def body(self, rows: Array) -> dict[str, Any]:
        tensor = _tensor(self._endpoint.input_name, rows.reshape(-1, *self._offer.inputs), self._offer.dtype)
        # The id is optional, but KServe models that hand it back fail without one.
        return {"id": "relumine", "inputs": [tensor], **self._endpoint.parameters}

    @cached_property
    def _rows_at(self) -> list[str | int]:
        return ["inputs", 0, "data"]

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

    def _said(self, shown: list[tuple[str, Array]]) -> Any:
        tensors = [_tensor(name, array, str(array.dtype)) for name, array in shown]
        return {"model_name": self._endpoint.url.split("/models/")[-1].split("/")[0], "outputs": tensors}

    def _check_place(self, place: str) -> None:
        if not place:
            raise MisuseError("answers: expected the name of an output tensor, got ''")


class Json(Protocol):
    """POST any JSON: a template with a word where the inputs belong. Where explanations are asked is told by a file.

    Without an explainer's address the same request is answered with both.
    """

    values_at = ""
    explained_values_at = ABSENT
    gradients_at = ""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        words = [word for _, word in texts_in(self._template) if word in _WORDS]
        if len(words) != 1:
            raise MisuseError(
                f"request: expected one of {', '.join(_WORDS)} where the inputs belong, got "
                f"{', '.join(words) or 'none'}"
            )
        self._single = words[0] in (ROW, RECORD)
        if self._single and endpoint.batch != 1:
            raise MisuseError(f"request: {words[0]} is a single input; say batch = 1 in [requests]")
        if words[0] in (RECORDS, RECORD) and not endpoint.columns:
            raise MisuseError(f"request: {words[0]} has fields by the names of columns; say columns = […]")
        if endpoint.explainer is None and endpoint.explained_values_at is None:
            self._explained_values_at = self._values_at

    def _template_of(self, endpoint: Endpoint) -> Any:
        return endpoint.request

    def _found(self, body: object, place: str) -> Any:
        found = super()._found(body, place)
        return [found] if self._single else found

    def _said(self, shown: list[tuple[str, Array]]) -> Any:
        return super()._said([(place, rows[0]) for place, rows in shown] if self._single else shown)


class MLflow(Json):
    """POST …/invocations of ``mlflow models serve``: inputs, or dataframe_split where columns have names."""

    values_at = "predictions"
    gradients_at = "explanations"

    def _template_of(self, endpoint: Endpoint) -> Any:
        if not endpoint.columns:
            return {"inputs": ROWS}
        return {"dataframe_split": {"columns": list(endpoint.columns), "data": ROWS}}

    def _rows_in(self, body: object) -> Any:
        columns = list(self._endpoint.columns)
        if columns and (said := part_at(body, ["dataframe_split", "columns"])) != columns:
            raise BadAnswerError(f"expected the columns {', '.join(columns)} in this order, got {_brief(said)}")
        return super()._rows_in(body)


_PROTOCOLS: dict[ProtocolName | None, type[Protocol]] = {
    "kserve-v1": KServeV1,
    "open-inference-v2": OpenInferenceV2,
    "torchserve": TorchServe,
    "mlflow": MLflow,
    "json": Json,
}


def protocol_of(endpoint: Endpoint) -> Protocol:
    return _PROTOCOLS[endpoint.protocol](endpoint)


def _filled(template: Any, words: Mapping[str, Any]) -> Any:
    if isinstance(template, Mapping):
        return {name: _filled(part, words) for name, part in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(part, words) for part in template]
    return words.get(template, template) if isinstance(template, str) else template


def found_at(body: object, place: str) -> Any:
    """What sits at a place: names of fields, [] for each element of a list, [2] for its third."""
    return _walk(body, _steps(place), place)


@cache
def _steps(place: str) -> list[Step]:
    return [(step[1], step[2]) for step in _STEP.finditer(place)]


def _walk(here: Any, steps: list[Step], place: str) -> Any:
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


def _tensor(name: str, numbers: Array, dtype: str) -> dict[str, Any]:
    """As the Open Inference Protocol writes it."""
    datatype = {"float32": "FP32", "float64": "FP64"}[dtype]
    return {"name": name, "shape": list(numbers.shape), "datatype": datatype, "data": numbers.ravel()}


def _shaped(tensor: dict[str, Any]) -> Any:
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
