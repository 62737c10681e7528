"""What a server takes and answers, found by asking: the proposal that ``relumine probe --write-config`` writes.

    Open Inference Protocol   the model's metadata name its tensors, with their shapes (Triton's FIL backend: its SHAP
                              values, treeshap_output)
    KServe, TorchServe, MLflow   the protocol's own request, sent once
    any other address         JSON requests with the field that the server's OpenAPI page names (FastAPI: /openapi.json,
                              BentoML: /docs.json), or with the usual ones

Each try sends two random inputs. Of the answer, the array with two rows that is called so, or the first, is the values;
one with a number per feature is the explanations.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from scipy.special import logit

from relumine.endpoints import EndpointOptions, oracle_at
from relumine.errors import AccessError, OracleFailedError, QuotaError, RelumineError, TargetError
from relumine.oracle.base import Array, DType, GradientKind, Offer, ValueKind
from relumine.oracle.http.endpoint import Endpoint, ProtocolName, protocol_at
from relumine.oracle.http.limits import Limits
from relumine.oracle.http.oracle import HttpOracle
from relumine.oracle.http.protocol import ABSENT, RECORD, ROW, ROWS, protocol_of
from relumine.oracle.http.sender import Cancellation, Sender
from relumine.probe.known import answers_in_float32
from relumine.probe.preflight import Findings

# Fields in which services expect their inputs, beside those that their OpenAPI page names.
_FIELDS = ("inputs", "instances", "data", "input", "features", "x", "input_data", "rows")
_PAGES = ("/openapi.json", "/docs.json")
_ROWS = 2
# Fields of a server's own page that are tried, and the paths on it that may be asked: of this server, without a query.
_MOST_FIELDS = 8
_PATH = re.compile(r"/[\w./~-]*")
# Numbers of one input that a server may declare by itself: some 1000 × 1000 pixels in colour.
_LARGEST_INPUT = 2**22
# Numbers that an answer to the rows is expected to have; limits leave room for eight times as many.
_MOST_NUMBERS = 2**19
_EXPLAINED = re.compile(r"expl|attrib|shap|grad|contrib|salien|importan", re.IGNORECASE)
_PREDICTED = re.compile(r"pred|prob|logit|score|output|value|class|label|result", re.IGNORECASE)
_SHAP = re.compile(r"shap|contrib", re.IGNORECASE)
# Inputs at which labels are looked for.
_LABELLED = 64


@dataclass(frozen=True, eq=False)
class _Place:
    """An array of an answer: where it is, and its numbers (or labels), n first."""

    place: str
    numbers: "np.ndarray[Any, Any]"

    @property
    def each(self) -> int:
        """How many there are for an input."""
        return prod(self.numbers.shape[1:])


def found_at(
    url: str,
    said: EndpointOptions,
    *,
    inputs: tuple[int, ...] | None = None,
    gradients: GradientKind | None = None,
    seed: int = 0,
) -> HttpOracle:
    """The oracle at an address, in the precision in which it answers: a first answer in all digits tells that."""
    if inputs is not None and said.outputs is not None and tells_all(url):
        # Values of any kind pass as real numbers; the preflight tells which they are.
        def at(dtype: DType) -> HttpOracle:
            return oracle_at(url, replace(said, dtype=dtype), inputs=inputs, values="real", gradients=gradients)
    else:
        endpoint = proposed(url, inputs, said)

        def at(dtype: DType) -> HttpOracle:
            return HttpOracle.at(in_precision(endpoint, dtype))

    oracle = at("float64")
    return at("float32") if answers_in_float32(oracle, seed) else oracle


def run_name(oracle: HttpOracle, seed: int) -> str:
    """The folder of a preflight: answers are kept by what it assumed of the server, and bind no other run to that."""
    return f"probe-{hashlib.sha256(repr(oracle.offer).encode()).hexdigest()[:8]}-{seed}"


def description(oracle: HttpOracle, findings: Findings) -> Endpoint:
    """The server as the preflight found it, for reconstructions and audits."""
    offer = findings.offer if findings.offer.contributions else findings.adapt(oracle).offer
    return oracle.endpoint.changed(offer=offer, explanation=findings.recipe, batch=1 if findings.one_by_one else None)


def tells_all(url: str) -> bool:
    """Whether an address tells the protocol, and that the places of values and explanations."""
    try:
        return protocol_at(url) in ("kserve-v1", "torchserve")
    except RelumineError:
        return False


def in_precision(endpoint: Endpoint, dtype: DType) -> Endpoint:
    """The same in this precision, unless the server's metadata name it."""
    if endpoint.protocol == "open-inference-v2":
        return endpoint
    return replace(endpoint, offer=replace(endpoint.offer, dtype=dtype))


def proposed(url: str, inputs: tuple[int, ...] | None, said: EndpointOptions | None = None) -> Endpoint:
    """The description of the server at an address, found by a few requests, or a TargetError that says what to do."""
    said = said or EndpointOptions()
    try:
        protocol: ProtocolName | None = protocol_at(url)
    except RelumineError:
        protocol = None
    offer = Offer(inputs or (1,), 1, values="real", gradients="none", dtype="float32")
    request = None if protocol else {"inputs": ROWS}
    start = Endpoint(url, offer, protocol=protocol or "json", request=request).changed(**said.manners)
    start.require_authorization()
    with Sender(replace(start, retries=0)) as sender:
        tensors = _metadata(start, sender) if protocol == "open-inference-v2" else {}
        shape = inputs or tensors.get("inputs")
        if shape is None:
            raise TargetError(
                f"{url}: the server does not say what it takes; say the shape of one input, --input-shape"
            )
        tried = []
        offer = replace(start.offer, inputs=shape, dtype=tensors.get("dtype", "float32"))
        for endpoint in _candidates(replace(start, offer=offer), tensors, protocol, sender):
            try:
                return _RequestTrial(endpoint, sender).described(said.outputs)
            except (AccessError, QuotaError):
                raise
            except RelumineError as error:
                tried.append(str(error))
    raise TargetError(
        f"{url}: none of {len(tried)} requests was answered with numbers; write the request into a file "
        f"(--endpoint-config; docs/endpoints.md, «Any JSON»). The last answer: {tried[-1][:200]}"
    )


def _metadata(endpoint: Endpoint, sender: Sender) -> dict[str, Any]:
    """The name and shape of the model's input tensor, as GET v2/models/NAME says."""
    said = sender.get(endpoint.url, Limits(_MOST_NUMBERS))
    tensors = said.get("inputs") if isinstance(said, dict) else None
    try:
        (tensor,) = tensors or [None]
        dtype = {"FP32": "float32", "FP64": "float64"}[tensor["datatype"]]
        shape = tuple(int(n) for n in tensor["shape"][1:])
        found = {"name": str(tensor["name"]), "dtype": dtype}
    except (TypeError, ValueError, KeyError) as error:
        raise TargetError(
            f"{endpoint.url}: expected metadata of a model with one FP32 or FP64 input, got others"
        ) from error
    if prod(shape) > _LARGEST_INPUT:
        raise TargetError(f"{endpoint.url}: expected inputs of at most {_LARGEST_INPUT:,} numbers, got {shape}"[:400])
    return found | ({"inputs": shape} if shape and min(shape) > 0 else {})  # a size that is left open is -1


def _candidates(
    start: Endpoint, tensors: dict[str, Any], protocol: ProtocolName | None, sender: Sender
) -> Iterator[Endpoint]:
    """Descriptions to try, the likeliest first."""
    if protocol is not None:
        yield start.changed(input_name=tensors.get("name"))
        return
    fields, explainer = _from_openapi(start, sender)
    if len(fields) == start.offer.dimension > 1:  # a field for each feature
        yield replace(start, request=RECORD, columns=tuple(fields), explainer=explainer, batch=1)
    names = list(dict.fromkeys((*fields[:_MOST_FIELDS], *_FIELDS)))
    for word, batch in ((ROWS, start.batch), (ROW, 1)):
        for request in ({name: word} for name in names):
            yield replace(start, request=request, explainer=explainer, batch=batch)
        yield replace(start, request=word, explainer=explainer, batch=batch)


def _from_openapi(endpoint: Endpoint, sender: Sender) -> tuple[list[str], str | None]:
    """The fields of the request at this address, and the address of explanations, as the server's own page has them."""
    parts = urlsplit(endpoint.url)
    origin = f"{parts.scheme}://{parts.netloc}"
    for page in _PAGES:
        try:
            said = sender.get(f"{origin}{page}", Limits(_MOST_NUMBERS))
        except RelumineError:
            continue
        paths = said.get("paths") if isinstance(said, dict) else None
        if not isinstance(paths, dict):
            continue
        # Explanations are answered at a path of the server's own: another would lead elsewhere.
        own = [path for path in paths if path != parts.path and _PATH.fullmatch(path)]
        explaining = next((path for path in own if _EXPLAINED.search(path)), None)
        return _properties(said, paths.get(parts.path)), None if explaining is None else f"{origin}{explaining}"
    return [], None


def _properties(said: dict[str, Any], path: Any) -> list[str]:
    """Names of the fields of a POST's body, through one $ref."""
    try:
        schema = next(iter(path["post"]["requestBody"]["content"].values()))["schema"]
        if "$ref" in schema:
            schema = said["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return [str(name) for name in schema["properties"]]
    except (KeyError, TypeError, StopIteration, AttributeError):
        return []


class _RequestTrial:
    """One way of asking, and what the answers to it show."""

    def __init__(self, endpoint: Endpoint, sender: Sender) -> None:
        self._endpoint, self._sender = endpoint, sender
        self._protocol = protocol_of(endpoint)
        self._rows = 1 if endpoint.batch == 1 else _ROWS

    def _inputs(self, count: int) -> Array:
        """Random inputs, in numbers that float32 can hold."""
        rows = np.random.default_rng(0).standard_normal((count, self._endpoint.offer.dimension))
        return rows.astype(np.float32).astype(np.float64)

    def described(self, outputs: int | None) -> Endpoint:
        """The endpoint with places, outputs and explanations; raises where the answer has no values."""
        found = self._places(self._inputs(self._rows), gradients=False)
        rest = [one for one in found if not _EXPLAINED.search(one.place)]
        values = next((one for one in rest if _PREDICTED.search(one.place)), rest[0] if rest else None)
        if values is None:
            raise OracleFailedError("the answer has no numbers, one row for each input")
        if (labelled := self._labelled(values, outputs)) is not None:
            return labelled
        described = replace(
            self._endpoint, values_at=values.place, offer=replace(self._endpoint.offer, outputs=values.each)
        )
        return self._explained(described, values, found)

    def _explained(self, described: Endpoint, values: _Place, found: list[_Place]) -> Endpoint:
        """With explanations, where the same answer or that of an explainer has them."""
        explained_values: str | None = values.place
        explains = self._endpoint.explainer is not None or self._endpoint.protocol in ("kserve-v1", "torchserve")
        if not _maps(found, values, described.offer) and explains:
            found = self._places(self._inputs(self._rows), gradients=True)
            same = [one for one in found if one.each == values.each and not _EXPLAINED.search(one.place)]
            explained_values = same[0].place if same else ABSENT
        maps = _maps(found, values, described.offer)
        if maps is None:
            return replace(described, explainer=None)
        d, K = described.offer.dimension, values.each
        rows = maps.each // (d + (maps.each % d != 0))
        based = maps.each == rows * (d + 1)
        kind: dict[str, Any] = {"gradients": "all" if rows == K else 1 if K == 2 else "top"}
        if based or _SHAP.search(maps.place):
            kind |= {"contributions": True, "explained": _sums_to(maps, values, rows) if based else None}
        return replace(
            described,
            gradients_at=maps.place,
            explained_values_at=explained_values,
            offer=replace(described.offer, **kind),
        )

    def _labelled(self, values: _Place, outputs: int | None) -> Endpoint | None:
        """A server of labels, which are words or whole numbers: which there are is seen at some inputs."""
        if values.each != 1 or not _are_labels(values.numbers):
            return None
        at_once = 1 if self._rows == 1 else _LABELLED
        inputs = self._inputs(_LABELLED)
        answers = [self._places(inputs[i : i + at_once], gradients=False) for i in range(0, _LABELLED, at_once)]
        seen = np.concatenate(
            [one.numbers.ravel() for places in answers for one in places if one.place == values.place]
        )
        if not _are_labels(seen):
            return None
        words = seen.dtype.kind == "U"
        known = np.unique(seen).tolist() if words else list(range(int(max(seen.max(), (outputs or 2) - 1)) + 1))
        if len(known) < 2 or (outputs is not None and len(known) != outputs):
            raise TargetError(
                f"{self._endpoint.url}: it answers labels, of which {', '.join(map(str, known[:8]))} were seen; "
                "say all of them in a file, classes = […]"
            )
        offer = replace(self._endpoint.offer, outputs=len(known), values="label")
        return replace(self._endpoint, values_at=values.place, offer=offer, classes=tuple(known) if words else ())

    def _places(self, inputs: Array, *, gradients: bool) -> list[_Place]:
        body = self._protocol.body(inputs)
        url = self._protocol.url(gradients=gradients)
        try:
            answer = self._sender.post(url, body, Cancellation(), Limits(_MOST_NUMBERS))
        except RelumineError:
            if not gradients:
                raise
            return []  # there is no explainer
        if self._endpoint.protocol == "open-inference-v2":
            tensors = answer.get("outputs", []) if isinstance(answer, dict) else []
            return [one for tensor in tensors if (one := _tensor(tensor, len(inputs))) is not None]
        single = self._endpoint.batch == 1
        found = ((place, [value] if single else value) for place, value in _values(answer, ""))
        return [one for place, value in found if (one := _array(place, value, len(inputs))) is not None]


def _are_labels(values: "np.ndarray[Any, Any]") -> bool:
    return values.dtype.kind == "U" or bool(((values >= 0) & (values == np.floor(values))).all())


def _values(answer: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Whatever may be an array, with its place, in the order of the answer; of a list of objects, each field's list."""
    if isinstance(answer, dict):
        for name, part in answer.items():
            if isinstance(name, str) and not set(name) & set(".[]"):
                yield from _values(part, f"{place}.{name}".lstrip("."))
    elif isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
        for name in answer[0]:
            if all(name in one for one in answer):
                yield from _values([one[name] for one in answer], f"{place}[].{name}")
    else:
        yield place, answer


def _array(place: str, value: Any, rows: int) -> _Place | None:
    try:
        numbers = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    plain = numbers.dtype.kind in "fiuU" and numbers.ndim >= 1 and len(numbers) == rows
    return _Place(place, numbers) if plain else None


def _tensor(tensor: Any, rows: int) -> _Place | None:
    try:
        numbers = np.asarray(tensor["data"]).reshape([int(n) for n in tensor["shape"]])
        return _array(str(tensor["name"]), numbers, rows)
    except (KeyError, TypeError, ValueError):
        return None


def _maps(found: list[_Place], values: _Place, offer: Offer) -> _Place | None:
    """An array with a number per feature (TreeSHAP: and the base value), for each output or for one."""
    fitting = {rows * d for rows in (1, values.each) for d in (offer.dimension, offer.dimension + 1)}
    fits = [one for one in found if one.place != values.place and one.each in fitting and one.numbers.dtype.kind == "f"]
    return next((one for one in fits if _EXPLAINED.search(one.place)), fits[0] if fits else None)


def _sums_to(maps: _Place, values: _Place, rows: int) -> ValueKind | None:
    """«logits» where contributions and base sum to the log-odds of values, None where they sum to values."""
    sums = maps.numbers.reshape(len(values.numbers), rows, -1).sum(axis=2)
    shown = values.numbers.reshape(len(sums), -1)[:, -rows:].astype(np.float64)
    within = shown.min() > 0 and shown.max() < 1
    if np.abs(sums - shown).max() < 1e-3 or not within:
        return None
    gap = sums - (logit(shown) if rows == 1 else np.log(shown))
    gap = gap - gap.mean(axis=1, keepdims=True) if rows > 1 else gap
    return "logits" if np.abs(gap).max() < 1e-2 * max(1.0, float(np.abs(sums).max())) else None
