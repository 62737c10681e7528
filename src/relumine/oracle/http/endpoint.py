"""Endpoint: all that one must know to ask a model server, as a record and as a small TOML file.

The file is described in docs/endpoints.md. A header's value is never written down: ``authorization_env`` names the
environment variable that holds it.
"""

import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from relumine.errors import MisuseError, TargetError
from relumine.oracle.base import Offer

ProtocolName = Literal["kserve-v1", "open-inference-v2", "torchserve", "mlflow", "json"]

# Protocols that know no explanations, unless somebody says where they are.
WITHOUT_EXPLANATIONS: tuple[ProtocolName, ...] = ("mlflow", "json")

# Requests per second and requests at a time of a server that is not on this machine, unless told otherwise.
POLITE_RATE = 5.0
POLITE_CONCURRENCY = 2
LOCAL_CONCURRENCY = 4

# How a protocol is told from an address: what stands before the model's name, and the verb that may stand after it.
_ADDRESSES: tuple[tuple[ProtocolName, str, str], ...] = (
    ("kserve-v1", r".*/v1/models/[^/:]+", r":predict|:explain"),
    ("open-inference-v2", r".*/v2/models/[^/:]+(?:/versions/[^/:]+)?", r"/infer"),
    ("torchserve", r".*/(?:predictions|explanations)/[^:]+", r""),
    ("mlflow", r".*/invocations", r""),
    ("json", r"(?!)", r""),  # any address: no address tells it
)
_ANSWERS = ("values", "explained_values", "gradients")
_REQUESTS = ("batch", "concurrency", "rate", "timeout", "retries", "patience")


@dataclass(frozen=True)
class Endpoint:
    """A model server: where it is, what it promises, how it is asked, and where in its answers the numbers are.

    url:               of the model, e.g. http://127.0.0.1:8080/v1/models/net; a verb at its end is taken off
    offer:             what it promises
    protocol:          by default told from the address
    values_at:         where values sit in an answer to a prediction, by default the protocol's place
    explained_values_at: where values sit in an answer to an explanation; "-" if they do not: then both are asked
    gradients_at:      where gradients sit in an answer to an explanation
    explainer:         the address of the model that explains, where it is another one
    input_name:        name of the input tensor (open-inference-v2)
    columns:           names of the features, for tables (mlflow: dataframe_split) and for records
    classes:           the labels that the server answers, in the order of the outputs; 0, 1, 2, … if not given
    request:           of protocol json, the body, in which "$rows" (or "$row", "$records", "$record") stands for inputs
    parameters:        further fields of every request's body
    explanation:       what the explanations are, as found by a preflight
    authorization_env: the environment variable that holds the Authorization header's value, if it is set
    authorized_by:     who allowed the test; needed for every server that is not on this machine
    batch:             most rows in a request; fewer are sent where an answer would have more than 524,288 numbers
    concurrency:       most requests at a time
    rate:              most requests per second; None on this machine means as fast as it answers
    timeout:           seconds for one request
    retries:           how often a request that failed is repeated
    patience:          longest wait, in seconds, that a server may ask for (Retry-After) before the run ends
    """

    url: str
    offer: Offer
    protocol: ProtocolName | None = None
    values_at: str | None = None
    explained_values_at: str | None = None
    gradients_at: str | None = None
    explainer: str | None = None
    input_name: str = "input-0"
    columns: tuple[str, ...] = ()
    classes: tuple[str | int | float, ...] = ()
    request: Mapping[str, Any] | str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    explanation: str = "gradient"
    authorization_env: str = "RELUMINE_AUTHORIZATION"
    authorized_by: str | None = None
    batch: int = 64
    concurrency: int | None = None
    rate: float | None = None
    timeout: float = 30.0
    retries: int = 6
    patience: float = 60.0

    def __post_init__(self) -> None:
        url, protocol = _understood(self.url, self.protocol)
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "protocol", protocol)
        if self.explainer is not None:
            object.__setattr__(self, "explainer", _understood(self.explainer, protocol)[0])
        if self.concurrency is None:
            object.__setattr__(self, "concurrency", LOCAL_CONCURRENCY if self.is_local else POLITE_CONCURRENCY)
        if self.rate is None and not self.is_local:
            object.__setattr__(self, "rate", POLITE_RATE)
        self._check_numbers()
        if not isinstance(self.offer, Offer):
            raise MisuseError(f"offer: expected an Offer, got {type(self.offer).__name__}")
        for name, count in {"columns": self.offer.dimension, "classes": max(self.offer.outputs, 2)}.items():
            listed = getattr(self, name)
            if listed and (
                not isinstance(listed, list | tuple) or len(listed) != count or len(set(map(str, listed))) != count
            ):
                raise MisuseError(f"{name}: expected {count} different names in a list, got {listed!r}")
            object.__setattr__(self, name, tuple(listed))
        if (self.request is not None) != (protocol == "json"):
            raise MisuseError(f'request: expected [request] for protocol = "json" and no other, got {protocol!r}')

    def _check_numbers(self) -> None:
        for name, least in {"batch": 1, "concurrency": 1, "retries": 0}.items():
            if type(number := getattr(self, name)) is not int or number < least:
                raise MisuseError(f"{name}: expected an integer, at least {least}, got {number!r}")
        for name in ("timeout", "patience", *(["rate"] if self.rate is not None else [])):
            if type(number := getattr(self, name)) not in (int, float) or not 0 < number < float("inf"):
                raise MisuseError(f"{name}: expected a positive number, got {number!r}")

    @property
    def is_local(self) -> bool:
        """Whether every address is one of this machine's own."""
        return all(is_loopback(urlsplit(url).hostname or "") for url in (self.url, self.explainer) if url is not None)

    @property
    def name(self) -> str:
        """Host, port and model in one word that can be a folder's name."""
        parts = urlsplit(self.url)
        return re.sub(r"[^\w.-]+", "-", f"{parts.hostname}-{parts.port or parts.scheme}-{parts.path.split('/')[-1]}")

    def require_authorization(self) -> None:
        """Refuse servers elsewhere unless somebody is named who allowed the test."""
        if not self.is_local and not (self.authorized_by or "").strip():
            raise MisuseError(
                f"{self.url} is not on this machine; relumine is for endpoints that you own or are allowed to test: "
                "say who allowed this test with --authorized-by TEXT (authorized_by=…); it is kept in the ledger"
            )

    def changed(self, **settings: Any) -> "Endpoint":
        """A copy in which the settings that are not None take the place of the old ones."""
        return replace(self, **{name: value for name, value in settings.items() if value is not None})

    def at(self, address: str) -> "Endpoint":
        """The same behind another scheme, host and port: where something stands in front of it."""
        moved = {name: url and address + urlsplit(url).path for name, url in vars(self).items() if name in _ADDRESSED}
        return replace(self, **moved)

    def to_toml(self) -> str:
        """The text of the TOML file; read_endpoint() gives the same record."""
        offer = asdict(self.offer)
        answers = {name: getattr(self, f"{name}_at") for name in _ANSWERS}
        top = {name: getattr(self, name) for name in _TOP} | {name: getattr(self, name) or None for name in _LISTS}
        requests = {name: getattr(self, name) for name in _REQUESTS}
        tables = {"offer": offer, "answers": answers, "requests": requests, "parameters": dict(self.parameters)}
        if isinstance(self.request, str):
            top["request"] = self.request
        else:
            tables["request"] = dict(self.request or {})
        return toml_lines(top) + "".join(
            f"\n[{name}]\n{toml_lines(table)}" for name, table in tables.items() if toml_lines(table)
        )

    def write(self, path: str | Path) -> Path:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(self.to_toml(), encoding="utf-8")
        except OSError as error:
            raise TargetError(f"{path}: the endpoint's settings cannot be written there: {error}") from error
        return Path(path)


_LISTS = ("columns", "classes")
_ADDRESSED = ("url", "explainer")
_TOP = ("url", "protocol", "explainer", "input_name", "explanation", "authorization_env", "authorized_by")


def read_endpoint(path: str | Path) -> Endpoint:
    """The endpoint that a TOML file describes, or a TargetError that says what is wrong with the file."""
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: expected a file of endpoint settings, got {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise TargetError(
            f"{path}: expected TOML, got {error}; relumine probe URL --write-config writes one"
        ) from error
    try:
        return _endpoint(said)
    except (MisuseError, TypeError) as error:
        raise TargetError(f"{path}: {error}") from error


def _endpoint(said: dict[str, Any]) -> Endpoint:
    offer, answers, requests = (_table(said, name) for name in ("offer", "answers", "requests"))
    parameters = _table(said, "parameters")
    request = said.get("request") if isinstance(said.get("request"), str) else _table(said, "request") or None
    _require_known("", said, (*_TOP, *_LISTS, "offer", "answers", "request", "requests", "parameters"))
    _require_known("offer.", offer, tuple(part.name for part in fields(Offer)))
    _require_known("answers.", answers, _ANSWERS)
    _require_known("requests.", requests, _REQUESTS)
    for table, name in ((said, "url"), (offer, "inputs"), (offer, "outputs")):
        if name not in table:
            raise MisuseError(f"expected {name} = …, got a file without it")
    if "box" in offer:
        offer = offer | {"box": _box(offer["box"])}
    top = {name: said[name] for name in _TOP if name in said}
    places = {f"{name}_at": place for name, place in answers.items()}
    strange = [name for name, text in (top | places).items() if not isinstance(text, str)]
    if strange:
        raise MisuseError(f"{strange[0]}: expected a text in quotes, got {(top | places)[strange[0]]!r}")
    listed = {name: said[name] for name in _LISTS if name in said}
    return Endpoint(**top, **listed, offer=Offer(**offer), request=request, parameters=parameters, **places, **requests)


def _box(said: object) -> tuple[float, float]:
    if isinstance(said, list) and [type(n) in (int, float) for n in said] == [True, True]:
        return float(said[0]), float(said[1])
    raise MisuseError(f"offer.box: expected [lowest, highest], got {said!r}")


def _table(said: dict[str, Any], name: str) -> dict[str, Any]:
    table = said.get(name, {})
    if not isinstance(table, dict):
        raise MisuseError(f"{name}: expected a table [{name}], got {table!r}")
    return table


def _require_known(prefix: str, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in table:
        if name not in known:
            raise MisuseError(f"{prefix}{name}: there is no such setting; expected one of {', '.join(known)}")


def toml_lines(table: Mapping[str, Any]) -> str:
    """A table in TOML, without what is None."""
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in table.items() if value is not None)


def _key(name: str) -> str:
    """A name in TOML: services choose those of their fields, with blanks, dots and line ends if they like."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    """A value in TOML, which writes strings, numbers and booleans as JSON does."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(name))} = {_toml(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def protocol_at(url: str) -> ProtocolName:
    """The protocol that an address tells, or a MisuseError."""
    return _understood(url, None)[1]


def _understood(url: object, protocol: ProtocolName | None) -> tuple[str, ProtocolName]:
    """The address of the model without a verb, and the protocol spoken there."""
    if not isinstance(url, str):
        raise MisuseError(f"url: expected a text, got {type(url).__name__}")
    _check_address(url)
    for name, address, verb in _ADDRESSES:
        found = re.fullmatch(rf"({address})(?:{verb})?/?", url)
        if found and protocol in (None, name):
            return found[1], name
    if protocol is None:
        raise MisuseError(
            "url: expected http(s)://HOST/v1/models/NAME (KServe), /v2/models/NAME (Open Inference Protocol), "
            f"/predictions/NAME (TorchServe) or /invocations (MLflow), got {url!r}; relumine probe URL --write-config "
            "FILE finds out what another address takes, and --endpoint-config FILE says it"
        )
    if protocol not in (name for name, *_ in _ADDRESSES):
        raise MisuseError(f"protocol: expected one of {', '.join(n for n, *_ in _ADDRESSES)}, got {protocol!r}")
    return url.rstrip("/"), protocol


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise MisuseError(f"url: expected an address like http://host:port/v1/models/NAME, got {error}") from error
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        # Not repeated here: what stands there may be secret.
        raise MisuseError(
            "url: expected an address without user, password, query or fragment; put what authorises you into the "
            "environment variable RELUMINE_AUTHORIZATION, e.g. 'Bearer …'"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MisuseError(f"url: expected http://… or https://… with a host, got {url!r}")


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
