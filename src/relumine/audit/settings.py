"""AuditSettings: everything that an audit is told, on the command line or in ``audit.toml``."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from relumine.audit import default
from relumine.audit.gate import parse_condition
from relumine.audit.levels import LEVELS
from relumine.audit.severity import PRESETS
from relumine.defend import parse
from relumine.endpoints import EndpointOptions, is_url
from relumine.errors import MisuseError
from relumine.oracle.base import GradientKind, Oracle, ValueKind
from relumine.targets import fingerprint, load_target

EngineName = Literal["local", "ray"]

# What decides the outcome of a case; the rest decides which cases are run and what is said about them.
_OF_CASES = ("input_shape", "values", "gradients", "factory", "endpoint", "label_column", "backbone")
# Of an endpoint, how fast it is asked changes nothing.
_PACES = ("rate", "concurrency", "timeout", "authorized_by")


@dataclass(frozen=True)
class AuditSettings:
    """What to audit, and how.

    target, input_shape, values, gradients, factory, endpoint: as of ``load_target``; without a target the network of
                        ``audit.default`` is audited
    data:               inputs of the owner's, as ``audit.data`` reads them; None asks at Gaussian inputs
    label_column:       of a table of data, the column of the labels
    backbone:           of the target, if it is public: a file or a factory, as of ``load_backbone``
    budget:             queries of the largest case
    seeds:              how often each case is run, with different randomness
    levels:             names of LEVELS; all that the target can give if empty
    defences:           words of chains of defences, as ``round:4+top``
    exposed:            names of the levels that are exposed today; of a server all that it answers, if empty
    price:              of 1,000 queries
    fail_on:            conditions, as of ``audit.gate``
    preset:             a name of ``audit.severity.PRESETS``, whose condition is added to ``fail_on``
    time_limit:         seconds that one attack may compute; one that is stopped says nothing about the target
    engine, workers, address: who runs the cases
    """

    target: str = default.TARGET
    input_shape: tuple[int, ...] | None = None
    values: ValueKind | None = None
    gradients: GradientKind | None = None
    factory: str | None = None
    endpoint: EndpointOptions = field(default_factory=EndpointOptions)
    data: str | None = None
    label_column: str | None = None
    backbone: str | None = None
    budget: int = 1000
    seeds: int = 3
    levels: tuple[str, ...] = ()
    defences: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    price: float | None = None
    fail_on: tuple[str, ...] = ()
    preset: str | None = None
    time_limit: float = 600
    engine: EngineName = "local"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if self.target == default.TARGET:
            object.__setattr__(self, "input_shape", self.input_shape or default.SHAPE)
            object.__setattr__(self, "data", self.data or default.DATA)
        for name in ("budget", "seeds"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for setting in ("levels", "exposed"):
            unknown = [name for name in getattr(self, setting) if name not in LEVELS]
            _require(not unknown, setting, f"names of {', '.join(LEVELS)}", ", ".join(unknown))
        if self.levels:
            object.__setattr__(self, "levels", tuple(dict.fromkeys(self.levels + self.exposed)))
        _require(self.preset in (None, *PRESETS), "preset", " or ".join(PRESETS), self.preset)
        if self.preset is not None:
            condition = PRESETS[self.preset].format(budget=self.budget)
            object.__setattr__(self, "fail_on", tuple(dict.fromkeys((*self.fail_on, condition))))
        _require(self.time_limit > 0, "time_limit", "seconds above 0", self.time_limit)
        _require(self.engine in get_args(EngineName), "engine", "local or ray", self.engine)
        _require(self.price is None or self.price >= 0, "price", "a price of at least 0", self.price)
        for words in self.defences:
            parse(words)
        for condition in self.fail_on:
            parse_condition(condition)

    @property
    def remote(self) -> bool:
        """Whether the target is a server's address, whose answers are paid for."""
        return is_url(self.target)

    @property
    def is_undescribed(self) -> bool:
        """Whether it is a server of which neither a file nor these settings say what it takes and answers."""
        told = self.endpoint.endpoint_config or (self.endpoint.outputs and self.input_shape)
        return self.remote and not told

    @property
    def name(self) -> str:
        """What the target is called in reports and folders."""
        if self.target == default.TARGET:
            return "digits"
        return self.target if self.remote or ":" in self.target else Path(self.target).name

    def oracle(self) -> Oracle:
        """Load the target."""
        return load_target(
            self.target,
            input_shape=self.input_shape,
            values=self.values,
            gradients=self.gradients,
            factory=self.factory,
            endpoint=self.endpoint,
        )

    def fingerprint(self) -> str:
        """What must be the same for a run to go on: the target, its data, and how they are taken."""
        plain = {name: value for name, value in asdict(self).items() if name in _OF_CASES}
        plain["endpoint"] = {name: str(value) for name, value in plain["endpoint"].items() if name not in _PACES}
        files = {name: getattr(self, name) for name in ("target", "data", "backbone")}
        plain |= {name: None if file is None else fingerprint(file) for name, file in files.items()}
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise MisuseError(f"{name}: expected {expected}, got {got}")


def read_settings(path: Path | None, said: Mapping[str, Any]) -> AuditSettings:
    """The settings of an ``audit.toml``, if any, and those ``said`` on the command line, which win.

    Keys are the fields of AuditSettings and, for servers, those of EndpointOptions; both with dashes if one likes.
    """
    plain = {} if path is None else _read(path)
    of_endpoint = get_type_hints(EndpointOptions)
    known = {name: hint for name, hint in get_type_hints(AuditSettings).items() if name != "endpoint"} | of_endpoint
    unknown = sorted(set(plain) - set(known))
    _require(not unknown, str(path), f"settings among {', '.join(sorted(known))}", ", ".join(unknown))
    plain = {name: _checked(f"{path}: {name}", known[name], value) for name, value in plain.items()}
    plain |= {
        name: tuple(value) if isinstance(value, list) else value for name, value in said.items() if value is not None
    }
    endpoint = EndpointOptions(**{name: plain.pop(name) for name in set(of_endpoint) & set(plain)})
    if endpoint.endpoint_config is not None:
        endpoint = replace(endpoint, endpoint_config=Path(endpoint.endpoint_config))
    return AuditSettings(**plain, endpoint=endpoint)


def _read(path: Path) -> dict[str, Any]:
    try:
        plain = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MisuseError(f"{path}: expected a TOML file of settings: {error}") from error
    return {name.replace("-", "_"): value for name, value in plain.items()}


def _checked(place: str, hint: Any, value: object) -> object:
    """The value, if it is of the setting's kind: a list, a number, or a word."""
    options = get_args(hint) or (hint,)
    lists = next((one for one in (hint, *options) if get_origin(one) is tuple), None)
    if lists is not None:
        kind = get_args(lists)[0]
        fitting = isinstance(value, list) and all(type(part) is kind for part in value)
        _require(fitting, place, f"a list of {'words' if kind is str else 'whole numbers'}", value)
        return tuple(value) if isinstance(value, list) else value
    kinds: tuple[type, ...] = (int, float) if float in options else (int,) if int in options else (str,)
    _require(
        type(value) in kinds, place, {int: "a whole number", str: "a word"}.get(kinds[-1], "a number"), repr(value)
    )
    return value
