"""Defences by name, and the words by which they are chosen: ``round:4+top``.

chain    = defence { "+" defence }        the first stands next to the target
defence  = name [ ":" setting { "," setting } ]
setting  = a number, in the order of the defence's parameters, or a word that one of them knows
"""

import re
from dataclasses import MISSING, dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np

from relumine.defend.base import NOT_SETTINGS, Defended, Rng
from relumine.defend.maps import HeatMap, MagnitudeOnly, MaxNormalised, SignOnly, TopClass, TopFeatures
from relumine.defend.noise import GaussianNoise, Rounded, SmoothGradDefence
from relumine.defend.refuse import Budget, FarInputs, InputBox
from relumine.defend.values import HighConfidence, LabelOnly, ReverseSigmoid
from relumine.defend.watch import DistanceWatch, LineWatch
from relumine.errors import MisuseError
from relumine.oracle.base import Oracle

Setting = int | float | str


@dataclass(frozen=True)
class Parameter:
    """A setting of a defence: a number (``int`` or ``float``), or one of some words. None is no default."""

    name: str
    number: type | None
    words: tuple[str, ...]
    default: Setting | None

    def __str__(self) -> str:
        kind = "|".join(self.words) or self.name.upper()
        return kind if self.default is None else f"[{kind}]"


@dataclass(frozen=True)
class Kind:
    """A defence that can be chosen by name."""

    name: str
    defended: type[Defended]
    example: str

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its settings: the record's fields."""
        hints, found = get_type_hints(self.defended), []
        for field in fields(self.defended):
            if field.init and field.name not in NOT_SETTINGS:
                hint, default = hints[field.name], None if field.default is MISSING else field.default
                words = get_args(hint) if get_origin(hint) is Literal else ()
                found.append(Parameter(field.name, None if words else hint, words, default))
        return tuple(found)

    @property
    def random(self) -> bool:
        """Whether it takes a source of randomness."""
        return "rng" in get_type_hints(self.defended)

    @property
    def changes(self) -> str:
        """What the example changes."""
        return parse(self.example).changes

    @property
    def usage(self) -> str:
        """How it is written, as in ``round:DECIMALS,[both|values|gradients]``."""
        return ":".join(filter(None, (self.name, ",".join(str(parameter) for parameter in self.parameters))))


DEFENCES: tuple[Kind, ...] = (
    Kind("round", Rounded, "round:6"),
    Kind("noise", GaussianNoise, "noise:0.01"),
    Kind("topk", TopFeatures, "topk:20"),
    Kind("sign", SignOnly, "sign"),
    Kind("magnitude", MagnitudeOnly, "magnitude"),
    Kind("heatmap", HeatMap, "heatmap:8"),
    Kind("maxnorm", MaxNormalised, "maxnorm"),
    Kind("top", TopClass, "top"),
    Kind("label", LabelOnly, "label"),
    Kind("smoothgrad", SmoothGradDefence, "smoothgrad:10,0.1"),
    Kind("box", InputBox, "box:0,1"),
    Kind("near", FarInputs, "near:3"),
    Kind("budget", Budget, "budget:1000"),
    Kind("lines", LineWatch, "lines:10"),
    Kind("prada", DistanceWatch, "prada:0.9"),
    Kind("high-confidence", HighConfidence, "high-confidence:0.25"),
    Kind("reverse-sigmoid", ReverseSigmoid, "reverse-sigmoid:1,0.1"),
)


@dataclass(frozen=True)
class Step:
    """One defence with its settings, not yet in front of anybody."""

    kind: Kind
    settings: tuple[tuple[str, Setting], ...] = ()

    def __str__(self) -> str:
        return ":".join(filter(None, (self.kind.name, ",".join(f"{value}" for _, value in self.settings))))

    @property
    def changes(self) -> str:
        """What it changes, in one sentence."""
        return self.kind.defended.says(dict(self.settings))

    def __call__(self, oracle: Oracle, rng: Rng = None) -> Defended:
        source = {"rng": rng} if self.kind.random else {}
        try:
            return self.kind.defended(oracle, **dict(self.settings), **source)
        except MisuseError as error:
            raise MisuseError(f"defence {str(self)!r}: {error}") from error


@dataclass(frozen=True)
class Chain:
    """Defences one in front of the other, the first next to the target. ``str`` gives the words to parse."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "+".join(map(str, self.steps))

    @property
    def changes(self) -> str:
        """What they change, a sentence each, in the order in which answers pass them."""
        return " ".join(step.changes for step in self.steps)

    @property
    def remembers(self) -> bool:
        """Whether an answer depends on what was asked before: then each client needs a defended oracle of its own."""
        return any(step.kind.defended.remembers for step in self.steps)

    @property
    def asks_elsewhere(self) -> bool:
        """Whether the target is asked other rows than the client asks."""
        return any(step.kind.defended.asks_elsewhere for step in self.steps)

    def __call__(self, oracle: Oracle, rng: Rng = None) -> Oracle:
        """A defended version of the oracle. ``rng`` is the source of all noise."""
        return self.in_front_of(oracle, self.sources(rng))

    def sources(self, rng: Rng) -> list[np.random.Generator]:
        """The source of each step's noise."""
        return np.random.default_rng(rng).spawn(len(self.steps))

    def in_front_of(self, oracle: Oracle, sources: list[np.random.Generator]) -> Oracle:
        """A defended version of the oracle. Several may share their sources: fresh noise is drawn for one of them."""
        for step, source in zip(self.steps, sources, strict=True):
            oracle = step(oracle, source)
        return oracle


def parse(text: str, kinds: tuple[Kind, ...] = DEFENCES) -> Chain:
    """The defences that a text names, or a MisuseError that says what there is."""
    # The plus of 1e+3 is part of a number.
    return Chain(tuple(_step(part.strip(), kinds) for part in re.split(r"\+(?![0-9])", text)))


def _step(text: str, kinds: tuple[Kind, ...]) -> Step:
    name, colon, rest = text.partition(":")
    kind = next((kind for kind in kinds if kind.name == name), None)
    if kind is None:
        known = ", ".join(kind.name for kind in kinds)
        raise MisuseError(f"defence {text!r}: expected one of {known} (such as 'round:6' or 'round:4+top')")
    settings: dict[str, Setting] = {}
    for word in rest.split(",") if colon else ():
        _set(settings, kind, word.strip())
    for parameter in kind.parameters:
        if parameter.default is None and parameter.name not in settings:
            raise _misuse(kind, f"{parameter.name} is not given")
    return Step(kind, tuple(settings.items()))


def _set(settings: dict[str, Setting], kind: Kind, word: str) -> None:
    """Give a word or a number to the parameter that it is for."""
    free = [parameter for parameter in kind.parameters if parameter.name not in settings]
    for parameter in free:
        if word in parameter.words:
            settings[parameter.name] = word
            return
    for parameter in free:
        if parameter.number is not None:
            settings[parameter.name] = _number(kind, parameter, word)
            return
    raise _misuse(kind, f"got {word!r}")


def _number(kind: Kind, parameter: Parameter, word: str) -> Setting:
    try:
        value = float(word)
        if parameter.number is int and value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        value = np.nan
    if parameter.number is int or not np.isfinite(value):
        expected = "a whole number" if parameter.number is int else "a number"
        raise _misuse(kind, f"{parameter.name} must be {expected}, got {word!r}")
    return value


def _misuse(kind: Kind, problem: str) -> MisuseError:
    return MisuseError(f"defence {kind.name!r}: expected {kind.usage!r}, such as {kind.example!r}; {problem}")
