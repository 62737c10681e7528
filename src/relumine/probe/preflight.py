"""Probe: about twenty questions that tell what an endpoint's explanations are.

Everything is judged by the values. Along a few random directions v their slopes ⟨∇f(x), v⟩ are measured, and each guess
at what the explanations are (gradient, input times gradient, …) predicts these slopes or does not. Random directions
leave no room for chance: a wrong guess misses by far. Before a recipe is believed, the adapter that it names is asked
for gradients, and those must predict the slopes too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from relumine.errors import BadAnswerError
from relumine.oracle.base import Answer, Array, DType, GradientKind, Offer, Oracle, ValueKind
from relumine.oracle.metered import Metered, metered
from relumine.probe.findings import Findings, Told
from relumine.probe.recipes import FAR, adapted

_POINTS = 4
_DIRECTIONS = 2
_AXES = 4

# Step of a slope, as a share of the input's size; how far a slope may be off, as a share of their size, to count as
# predicted; the smallest probability that has digits enough to show slopes.
_STEP: dict[DType, float] = {"float64": 2.0**-17, "float32": 2.0**-11}
_TOLERANCE: dict[DType, float] = {"float64": 1e-5, "float32": 1e-2}
_SMALLEST: dict[DType, float] = {"float64": 1e-6, "float32": 1e-2}
# Beyond this no guess can be told from another.
_COARSEST = 0.2
# Below this an ablation does not pass for input × gradient.
_FINE = 1e-4
# Path integrals are sums of a few dozen steps.
_COMPLETE = 0.1

_VALUES_ONLY = "reconstruct from values alone (gradients='none', --method values)"


class _Slopes(NamedTuple):
    """Slopes of the values: at ``points[i]`` along ``directions[i, j]``, ``slopes[i, j]`` (one per output)."""

    points: Array
    directions: Array
    slopes: Array
    tolerance: float


@dataclass(frozen=True)
class _Guess:
    """What explanations may be: maps at points, made into what would be gradients."""

    recipe: str
    kind: str
    gradient: Callable[[Array, Array], Array]


_SIGNED = (
    _Guess("gradient", "gradient", lambda x, maps: maps),
    _Guess("input-times-gradient", "input × gradient", lambda x, maps: maps / np.where(x == 0, np.inf, x)),
)


@dataclass(frozen=True)
class Probe:
    """Classifies an endpoint whose explanations are not known: ``Probe()(oracle, rng=0)`` gives Findings.

    The oracle's offer says how inputs and answers are shaped; what it says about values, precision and explanations
    is checked. Costs 25 to 50 queries, and for recipes that need values what one gradient costs.
    """

    def __call__(self, oracle: Oracle, rng: int | np.random.Generator | None = None) -> Findings:
        meter = metered(oracle)
        before = meter.spent
        with meter.phase("probe"):
            found = _Run(meter, np.random.default_rng(rng)).findings()
        return replace(found, spent=meter.spent.since(before))


def answers_in_float32(oracle: Oracle, rng: int | np.random.Generator | None = None) -> bool:
    """Whether one value query is answered in numbers that float32 can hold, if the oracle shows all digits."""
    values = oracle(np.random.default_rng(rng).standard_normal((1, oracle.offer.dimension)), gradients=False).values
    return bool(np.all(values == values.astype(np.float32)))


class _Run:
    """One preflight."""

    def __init__(self, meter: Metered, rng: np.random.Generator) -> None:
        self.meter = meter
        self.rng = rng
        self.offer = meter.offer
        self.remarks: list[str] = []
        self.one_by_one = False
        self.seen: list[Array] = []

    def findings(self) -> Findings:
        values = self._look()
        if self.offer.gradients == "none" or values == "label":
            what = "labels show no slopes" if values == "label" else "no explanations are offered"
            return self._nothing(what)
        points = self.scale * self._gaussian(_POINTS)
        answer = self._one_by_one(points)
        again = self.meter(points[:1], gradients=True)
        self.seen.append(answer.values)
        self._look_at_numbers()
        maps, largest = answer.jacobians, float(np.abs(answer.jacobians).max())
        noise = float(np.abs(again.jacobians - maps[:1]).max()) / max(largest, 1e-300)
        same = noise <= 100 * self.epsilon
        if np.abs(again.values - answer.values[:1]).max() > 100 * self.epsilon * np.abs(answer.values).max():
            self.remarks.append("the values are random too")
            self.offer = replace(self.offer, random=True)
            return self._found(maps, noise, "random answers", lost="values are random; average many answers")
        self.offer = replace(self.offer, random=not same)
        if not largest:
            return self._found(maps, noise, "all zero", lost=f"explanations say nothing; {_VALUES_ONLY}")
        if same:
            self._look_at_batches(points[:2], maps[:2])
            return self._deterministic(points, answer.values, maps, noise)
        return self._random(points, answer.values, maps, noise)

    def _one_by_one(self, points: Array) -> Answer:
        answers = [self.meter(point[None], gradients=True) for point in points]
        return Answer(*(np.concatenate(part) for part in zip(*((a.values, a.jacobians) for a in answers), strict=True)))

    def _look_at_batches(self, points: Array, maps: Array) -> None:
        """Some explainers mix the inputs of a batch."""
        together = self.meter(points, gradients=True).jacobians
        if np.abs(together - maps).max() > 1000 * self.epsilon * np.abs(maps).max():
            self.one_by_one = True
            self.remarks.append("explanations depend on the other inputs of a batch: they are asked one by one")

    # What values are

    def _look(self) -> ValueKind:
        """Values at 0 and at random points of several sizes: what they are, and a size at which they show slopes."""
        base = self._gaussian(_POINTS)
        sizes = (0.01, 0.1, 100.0) if self.offer.box is None else (0.01, 0.1)
        points = np.concatenate([np.zeros((1, base.shape[1])), base, *(size * base[:1] for size in sizes)])
        if self.offer.box is not None:
            points = points.clip(*self.offer.box)
        values = self.meter(points, gradients=False).values
        self.at_zero = values[0] if not points[0].any() else None
        self.seen.append(values)
        kind = _kind_of(values, self.offer)
        self.offer = replace(self.offer, values=kind)
        self._look_at_numbers()
        self.scale = 1.0
        if kind == "probabilities":
            usable = {1.0: values[1], 0.1: values[6], 0.01: values[5]}
            fits = [size for size, p in usable.items() if min(p.min(), (1 - p).min()) > _SMALLEST[self.offer.dtype]]
            self.scale = max(fits, default=0.01)
        return kind

    def _look_at_numbers(self) -> None:
        """Precision and rounding, from all values so far: explanations may be computed more finely than the target."""
        numbers = np.unique(np.concatenate([part.ravel() for part in self.seen]))
        numbers = numbers[(numbers != 0) & (np.abs(numbers) != 1)]
        single = bool(len(numbers)) and bool(np.all(numbers == numbers.astype(np.float32)))
        self.decimals = _decimals(numbers, single)
        if len(numbers) >= 6 and self.decimals is None:
            self.offer = replace(self.offer, dtype="float32" if single else "float64")
        self.epsilon = float(np.finfo(self.offer.dtype).eps)

    # What explanations are

    def _deterministic(self, points: Array, values: Array, maps: Array, noise: float) -> Findings:
        measured = self._slopes(points, values)
        if measured is None:
            return self._found(maps, noise, "unknown", lost=f"the values are too coarse to tell; {_VALUES_ONLY}")
        n = len(measured.points)
        recipe = self._recipe(measured, values[:n], maps[:n])
        if recipe is not None and self._confirmed(measured, values[:n], recipe):
            return self._with_recipe(points, values, maps, noise, recipe)
        return self._without_recipe(points, values, maps, noise)

    def _recipe(self, measured: _Slopes, values: Array, maps: Array) -> str | None:
        """The guess that predicts the slopes; its classes are noted in the offer."""
        for guess in _SIGNED:
            gradients = guess.gradient(measured.points[:, None, :], maps)
            if self._fits(measured, values, gradients):
                return None if self._may_be_ablation(guess, measured, values, maps) else guess.recipe
        for guess in _SIGNED:
            gradients = guess.gradient(measured.points[:, None, :], maps)
            if _has_constant_norm(maps) and self._fits(measured, values, gradients, scaled=True):
                return f"normalised-{guess.recipe}" if guess.recipe != "gradient" else "normalised"
        return self._magnitudes(measured, values, maps) if maps.min() >= 0 else None

    def _may_be_ablation(self, guess: _Guess, measured: _Slopes, values: Array, maps: Array) -> bool:
        """At the small inputs that probabilities need, an ablation is input × gradient but for a little."""
        small = guess.recipe == "input-times-gradient" and self.offer.values == "probabilities"
        return small and measured.tolerance > _FINE and self._ablation(measured.points, values, maps)

    def _magnitudes(self, measured: _Slopes, values: Array, maps: Array) -> str | None:
        """Maps without signs: compared with slopes along the axes where they are largest, at two of the points."""
        axes = np.stack([np.eye(maps.shape[2])[_large(maps[i], self.rng)] for i in (0, 1)])
        along = self._slopes(measured.points[:2], values[:2], axes)
        if along is None:
            return None
        along = along._replace(slopes=np.abs(along.slopes))
        if self._fits(along, values[:2], maps[:2]):
            return "absolute"
        if self._fits(along, values[:2], np.sqrt(maps[:2])):
            return "squared"
        scaled = _has_constant_norm(maps) and self._fits(along, values[:2], maps[:2], scaled=True)
        return "normalised-absolute" if scaled else None

    def _fits(self, measured: _Slopes, values: Array, gradients: Array, *, scaled: bool = False) -> bool:
        """Whether these gradients predict the slopes, up to a positive factor if ``scaled``; sets the classes."""
        for classes in self._possible(values):
            rows = _explained(classes, values)
            slopes = np.take_along_axis(measured.slopes, rows[:, None, :], axis=2)
            predicted = np.einsum("ijd,ird->ijr", measured.directions, gradients)
            if scaled:
                factors = (predicted * slopes).sum(axis=1) / np.maximum((predicted**2).sum(axis=1), 1e-300)
                if (factors < 0).any():
                    continue
                predicted = factors[:, None, :] * predicted
            # Kinks within a step spoil some slopes; a wrong guess spoils all.
            size = float(np.sqrt(np.mean(slopes**2)))
            gaps = np.abs(predicted - slopes).max(axis=2).ravel()
            if size > 0 and np.median(gaps) <= measured.tolerance * size:
                self.offer = replace(self.offer, gradients=classes)
                return True
        return False

    def _possible(self, values: Array) -> list[GradientKind | int]:
        """Which outputs one map may explain: what is offered first."""
        if self.offer.gradients == "all":
            return ["all"]
        tops = np.unique(values.argmax(axis=1))
        others: list[GradientKind | int] = ["top", *range(self.offer.outputs)]
        if len(tops) == 1 and self.offer.gradients in ("top", int(tops[0])):
            self.remarks.append(f"all inputs were of class {tops[0]}: whether others are explained is not known")
        return [self.offer.gradients, *(other for other in others if other != self.offer.gradients)]

    def _confirmed(self, measured: _Slopes, values: Array, recipe: str) -> bool:
        """Whether the adapter's own gradients predict the slopes: nothing is used that has not been seen to work."""
        try:
            oracle = adapted(Told(self.meter, self.offer, one_by_one=self.one_by_one), recipe)
            factor = FAR[self.offer.dtype] if recipe.startswith("smoothed") else 1.0
            gradients = oracle(measured.points[:2] / factor, gradients=True).jacobians / factor
        except BadAnswerError:
            return False
        points, directions, slopes, tolerance = measured
        some = _Slopes(points[:2], directions[:2], slopes[:2], tolerance)
        return self._fits(some, values[:2], gradients)

    def _slopes(self, points: Array, values: Array, directions: Array | None = None) -> _Slopes | None:
        """Slopes of the values along directions; None if rounding hides them."""
        n, d = points.shape
        if directions is None:
            n = min(n, 3)
            directions = self._gaussian(n * _DIRECTIONS).reshape(n, _DIRECTIONS, d)
        size = np.sqrt(np.mean(points[:n] ** 2, axis=1)).reshape(-1, 1, 1)
        rounding = self.epsilon * float(np.abs(values).max()) + self._quantum / 2
        step = _STEP[self.offer.dtype] * size
        if self.decimals is not None:
            # Long enough to stand out of the rounding, if values change by their own size over the input's size.
            step = np.maximum(step, size * min(400 * self._quantum / float(np.abs(values).max()), 2.0**-4))
        moves = step * directions
        rows = np.concatenate([(points[:n, None] + sign * moves).reshape(-1, d) for sign in (1, -1)])
        if self.offer.box is not None:
            rows = rows.clip(*self.offer.box)
        ahead, behind = np.split(self.meter(rows, gradients=False).values, 2)
        seen = np.split(rows.astype(self.offer.dtype).astype(np.float64), 2)
        moved = (seen[0] - seen[1]).reshape(moves.shape)
        lengths = np.abs(moved).max(axis=2, keepdims=True)
        slopes = (ahead - behind).reshape(n, directions.shape[1], -1) / lengths
        spread = float(np.sqrt(np.mean(slopes**2)))
        tolerance = max(_TOLERANCE[self.offer.dtype], 8 * rounding / float(lengths.min()) / max(spread, 1e-300))
        if tolerance > _COARSEST:
            return None
        return _Slopes(points[:n], moved / lengths, slopes, tolerance)

    def _random(self, points: Array, values: Array, maps: Array, noise: float) -> Findings:
        """Explanations that differ from time to time: noise in the input, which is nothing far out, or sampling."""
        if self.offer.box is None:
            far = FAR[self.offer.dtype] * points[:3]
            answer = self.meter(np.concatenate([far, far[:1]]), gradients=True)
            out, again = answer.jacobians[:3], answer.jacobians[3:]
            flat = np.abs(out).max() <= 1e-4 * np.abs(maps).max() and self.offer.values != "probabilities"
            if flat and maps.min() >= -1e-4 * maps.max():
                lost = f"far from kinks they vanish, so they only show where kinks are; {_VALUES_ONLY}"
                return self._found(maps, noise, "variance of gradients", points, values, lost=lost)
            if np.abs(out[:1] - again).max() <= 1e-3 * np.abs(out).max():
                measured = self._slopes(far, answer.values[:3])
                recipe = None if measured is None else self._recipe(measured, answer.values[:3], out)
                smoothed = "smoothed" if recipe == "gradient" else f"smoothed-{recipe}"
                known = smoothed in ("smoothed", "smoothed-absolute", "smoothed-squared")
                if measured is not None and known and self._confirmed(measured, answer.values[:3], smoothed):
                    return self._with_recipe(points, values, maps, noise, smoothed)
        if self._complete(values, maps, slack=0.3):
            kind, why = "sampled attribution", "a random mixture of gradients or of values at other inputs"
        else:
            kind, why = "random map", "no relation to the values was found that removes the randomness"
        return self._found(maps, noise, kind, points, values, lost=f"{why}; {_VALUES_ONLY}")

    def _without_recipe(self, points: Array, values: Array, maps: Array, noise: float) -> Findings:
        """Explanations that are no function of the gradient: say what they are instead."""
        if self.decimals is not None:
            why = f"answers rounded to {self.decimals} decimals are too coarse to tell, or these follow no gradient"
            return self._found(maps, noise, "unknown", points, values, lost=f"{why}; {_VALUES_ONLY}")
        kind, why = (
            "other map",
            "they follow neither gradients nor values: gradients changed on the way, or coarse maps",
        )
        if self._ablation(points, values, maps):
            kind, why = "ablation", "each number is a difference of two values, f(x) − f(x without that coordinate)"
        elif self._complete(values, maps):
            kind, why = "path attribution", "a mixture of gradients on the way from a baseline to the input"
        return self._found(maps, noise, kind, points, values, lost=f"{why}; {_VALUES_ONLY}")

    def _ablation(self, points: Array, values: Array, maps: Array) -> bool:
        where = _large(maps[0], self.rng)
        without = np.repeat(points[:1], len(where), axis=0)
        without[range(len(where)), where] = 0
        if self.offer.box is not None and not self.offer.box[0] <= 0 <= self.offer.box[1]:
            return False
        changes = values[0] - self.meter(without, gradients=False).values
        for classes in self._possible(values):
            expected = changes[:, _explained(classes, values)[0]].T
            gap = np.abs(maps[0][:, where] - expected).max()
            if gap <= max(1e-3, 100 * self.epsilon) * np.abs(expected).max() + self._quantum * 2:
                self.offer = replace(self.offer, gradients=classes)
                return True
        return False

    def _complete(self, values: Array, maps: Array, slack: float = _COMPLETE) -> bool | None:
        """Whether maps sum up to f(x) − f(0)."""
        if self.at_zero is None:
            return None
        sums = maps.sum(axis=2)
        for classes in self._possible(values):
            changes = np.take_along_axis(values - self.at_zero, _explained(classes, values)[: len(values)], axis=1)
            size = float(np.sqrt(np.mean(changes**2)))
            if size > 0 and np.median(np.abs(sums - changes)) <= slack * size and _together(sums, changes):
                if self.offer.gradients != "all":
                    self.offer = replace(self.offer, gradients=classes)
                return True
        return False

    # What is reported

    @property
    def _quantum(self) -> float:
        return 0.0 if self.decimals is None else 10.0**-self.decimals

    def _gaussian(self, count: int) -> Array:
        """Random inputs without zeros, which float32 can hold."""
        if self.offer.box is not None:
            low, high = self.offer.box
            rows = self.rng.uniform(low + 0.2 * (high - low), high - 0.2 * (high - low), (count, self.offer.dimension))
        else:
            rows = self.rng.standard_normal((count, self.offer.dimension))
        rows = np.where(np.abs(rows) < 0.01, np.copysign(0.01, rows), rows)
        return rows.astype(np.float32).astype(np.float64)

    def _with_recipe(self, points: Array, values: Array, maps: Array, noise: float, recipe: str) -> Findings:
        return self._found(maps, noise, _WORDS[recipe], points, values, recipe=recipe)

    def _nothing(self, what: str) -> Findings:
        offer = replace(self.offer, gradients="none")
        lost = f"{what}; {_VALUES_ONLY}" if offer.values != "label" else f"{what}, and explanations cannot be judged"
        return Findings(
            offer, self.decimals, "none", None, lost, None, None, None, None, True, False, 0.0, self.meter.spent,
            tuple(self.remarks),
        )  # fmt: skip

    def _found(
        self,
        maps: Array,
        noise: float,
        kind: str,
        points: Array | None = None,
        values: Array | None = None,
        *,
        recipe: str | None = None,
        lost: str = "",
    ) -> Findings:
        by_input = None if recipe is None else "input-times" in recipe
        return Findings(
            offer=self.offer,
            decimals=self.decimals,
            kind=kind,
            recipe=recipe,
            lost=lost,
            signed=bool(maps.min() < 0 < maps.max()),
            proportional=by_input,
            complete=None if values is None else self._complete(values, maps),
            normalised=None if recipe is None else "normalised" in recipe,
            deterministic=noise <= 100 * self.epsilon,
            one_by_one=self.one_by_one,
            noise=noise,
            spent=self.meter.spent,
            remarks=tuple(dict.fromkeys(self.remarks)),
        )


_WORDS = {
    "gradient": "gradient",
    "input-times-gradient": "input × gradient",
    "absolute": "|gradient|",
    "squared": "gradient²",
    "normalised": "gradient, scale lost",
    "normalised-input-times-gradient": "input × gradient, scale lost",
    "normalised-absolute": "|gradient|, scale lost",
    "smoothed": "smoothed gradient",
    "smoothed-absolute": "smoothed |gradient|",
    "smoothed-squared": "smoothed gradient²",
}


def _kind_of(values: Array, offer: Offer) -> ValueKind:
    """Probabilities and labels are told by their numbers; logits and other numbers by what is offered."""
    if offer.values == "label":
        return "label"
    whole = bool(np.all(values == np.round(values)))
    if whole and (values.shape[1] == 1 or bool(np.all(np.sort(values, axis=1)[:, :-1] == 0))):
        return "label"
    within = values.min() >= 0 and values.max() <= 1 + 1e-6
    if within and (values.shape[1] == 1 or np.abs(values.sum(axis=1) - 1).max() < 1e-2):
        return "probabilities"
    return "logits" if offer.values in ("probabilities", "logits") else "real"


def _decimals(numbers: Array, single: bool) -> int | None:
    """To how many decimals all numbers are rounded, if to few enough to tell."""
    if len(numbers) < 6:
        return None
    spacing = (
        np.spacing(np.abs(numbers).astype(np.float32)).astype(np.float64) if single else np.spacing(np.abs(numbers))
    )
    for decimals in range(12):
        if 10.0**-decimals < 20 * float(spacing.max()):
            return None
        if np.all(np.abs(np.round(numbers, decimals) - numbers) <= 2 * spacing):
            return decimals
    return None


def _explained(classes: GradientKind | int, values: Array) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """n×R: the outputs that each input's maps explain."""
    n, K = values.shape
    if classes == "all":
        return np.tile(np.arange(K), (n, 1))
    return values.argmax(axis=1)[:, None] if classes == "top" else np.full((n, 1), int(classes))


def _has_constant_norm(maps: Array) -> bool:
    """Whether all maps have the same largest number, sum or length: something normalised them."""
    size = np.abs(maps)
    for norms in (size.max(axis=2), size.sum(axis=2), np.sqrt((size**2).sum(axis=2))):
        there = norms[norms > 0]
        if len(there) and there.max() - there.min() <= 1e-3 * there.max():
            return True
    return False


def _large(maps: Array, rng: np.random.Generator) -> list[int]:
    """Some coordinates where the maps of one input are large, most of them the largest."""
    sizes = np.abs(maps).sum(axis=0)
    largest = np.argsort(-sizes)[:_AXES]
    return [int(i) for i in largest]


def _together(sums: Array, changes: Array) -> bool:
    """Whether the two move together, so that equal sizes are no accident."""
    first, second = sums.ravel(), changes.ravel()
    return bool(first @ second > 0.8 * np.linalg.norm(first) * np.linalg.norm(second))
