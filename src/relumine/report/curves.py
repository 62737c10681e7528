"""The two charts of an audit: how agreement grows with queries, and what each defence costs its honest reader."""

import math
from collections.abc import Callable, Sequence

from relumine.audit.result import About, AuditResult, Curve, Point, Spread
from relumine.report import wording
from relumine.report.chart import Axis, Chart, Mark, Series, logarithmic
from relumine.text import plural

_PER_CENT = tuple((share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 0.9, 1))

_USEFULNESS = {
    "rank_correlation": ("rank correlation", "rank correlation with undefended"),
    "top_overlap": ("top-tenth overlap", "overlap of the most important tenth"),
    "deletion": ("deletion", "deletion, 1: as undefended"),
    "insertion": ("insertion", "insertion, 1: as undefended"),
}


def leakage(result: AuditResult) -> Chart | None:
    """Agreement against queries, a line per curve; defended ones begin switched off. None where there is nothing."""
    curves = [curve for curve in result.curves if curve.points]
    if not curves:
        return None
    points = [point for curve in curves for point in curve.points]
    return Chart(
        "leakage",
        (
            _logarithmic("queries", "queries", "queries asked →", [point.queries for point in points]),
            _logarithmic("floats", "floats", "numbers received →", [point.floats for point in points]),
        ),
        tuple(_measured(points, result.about)),
        tuple(_line(curve, look) for curve, look in zip(curves, looks(result, curves), strict=True)),
    )


def looks(result: AuditResult, curves: Sequence[Curve]) -> list[int]:
    """A colour per exposed output, in the order of the result."""
    levels = list(dict.fromkeys(curve.level for curve in result.curves))
    return [levels.index(curve.level) for curve in curves]


def _logarithmic(name: str, switch: str, label: str, values: list[float]) -> Axis:
    low, high, ticks = logarithmic(values)
    return Axis(name, switch, label, low, high, ticks, logarithmic=True)


def _measured(points: list[Point], about: About) -> list[Axis]:
    alike = f"↑ clone {wording.agrees(about)}"
    axes = [
        _share("agreement", "agreement", f"{alike} (test inputs)", about.majority, "a constant guess"),
        _share("gaussian_agreement", "Gaussian agreement", f"{alike} (noise)"),
    ]
    if any(point.accuracy for point in points):
        label = "↑ clone gives the right class (test inputs)"
        axes.append(_share("accuracy", "accuracy", label, about.target_accuracy, "the target itself"))
    return axes


def _share(name: str, switch: str, label: str, reference: float | None = None, of: str = "") -> Axis:
    known = reference is not None and 0 <= reference <= 1
    return Axis(name, switch, label, 0, 1, _PER_CENT, reference=reference if known else None, reference_text=of)


def _line(curve: Curve, look: int) -> Series:
    return Series(
        wording.short(curve.name, 80),
        look,
        tuple(_point(curve, point) for point in curve.points),
        dashed=not curve.baseline,
        shown=not curve.defence,
    )


def _point(curve: Curve, point: Point) -> Mark:
    spreads = {name: getattr(point, name) for name in ("agreement", "gaussian_agreement", "accuracy")}
    said = f"{wording.short(curve.name, 80)}: {wording.with_spread(point.agreement, wording.per_cent)} agreement "
    said += f"after {wording.count(point.queries)} queries; attack {wording.short(point.attack, 60)}, "
    said += plural(point.agreement.seeds, "seed")
    if point.exact:
        said += f"; recovered exactly in {point.exact} of {point.agreement.seeds}"
    return Mark(
        {"queries": point.queries, "floats": point.floats},
        {name: _triple(spread) for name, spread in spreads.items()},
        said,
        ringed=point.exact > 0,
    )


def _triple(spread: Spread | None) -> tuple[float, float, float] | None:
    return None if spread is None else (spread.mean, spread.low, spread.high)


def frontier(result: AuditResult) -> Chart | None:
    """What an attacker needs against what the explanation is worth, a point per defence; None without defences."""
    curves = [curve for curve in result.curves if curve.usefulness is not None and curve.points]
    if not any(curve.defence for curve in curves):
        return None
    levels = list(dict.fromkeys(curve.level for curve in curves))
    return Chart(
        "frontier",
        tuple(_useful(name, curves) for name in _USEFULNESS),
        (
            _needed(curves, "95", "queries to 95 %", "↑ queries to 95 % agreement: more is better"),
            _needed(curves, "exact", "queries to exact", "↑ queries to exact recovery: more is better"),
            Axis("agreement", "best agreement", "↑ best agreement of a clone: less is better", 0, 1, _PER_CENT),
        ),
        tuple(_defences(result, [curve for curve in curves if curve.level == level]) for level in levels),
    )


def queries_to(curve: Curve, milestone: str) -> float:
    """The mean number of queries that a milestone took, infinite where it was not reached."""
    return next((n.queries.mean for n in curve.needs if n.milestone == milestone and n.queries is not None), math.inf)


def best(curve: Curve, measure: Callable[[Point], float]) -> float:
    """The largest of a measure over the curve's points; not a number where there is none."""
    return max((measure(point) for point in curve.points if not math.isnan(measure(point))), default=math.nan)


def _useful(name: str, curves: list[Curve]) -> Axis:
    switch, label = _USEFULNESS[name]
    low = min(0.0, *(_known(getattr(curve.usefulness, name)) for curve in curves))
    high = max(1.0, *(_known(getattr(curve.usefulness, name)) for curve in curves))
    low, high = max(low, -1.0) - 0.04, min(high, 1.5) + 0.1  # room for captions
    ticks = tuple((tick / 4, f"{tick / 4:g}") for tick in range(-4, 7) if low <= tick / 4 <= high)
    return Axis(name, switch, f"usefulness: {label} →", low, high, ticks)


def _known(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0


def _needed(curves: list[Curve], milestone: str, switch: str, label: str) -> Axis:
    low, high, ticks = logarithmic([queries_to(curve, milestone) for curve in curves])
    return Axis(milestone, switch, label, low, high, ticks, logarithmic=True, beyond="not reached")


def _defences(result: AuditResult, curves: list[Curve]) -> Series:
    name = wording.short(curves[0].label, 80)
    return Series(name, looks(result, curves)[0], tuple(_defence(curve) for curve in curves), lined=False)


def _defence(curve: Curve) -> Mark:
    agreement = best(curve, lambda point: point.agreement.mean)
    queries = queries_to(curve, "95")
    taken = (
        f"95 % after {wording.count(queries)} queries"
        if queries < math.inf
        else f"95 % not within {curve.tried:,} queries"
    )
    useful = {name: getattr(curve.usefulness, name) for name in _USEFULNESS}
    said = f"{wording.short(curve.defence, 80) or 'no defence'} ({wording.short(curve.label, 80)}): {taken}, "
    said += f"best agreement {wording.per_cent(agreement)}; " + ", ".join(
        f"{switch} {wording.decimal(useful[name])}" for name, (switch, _) in _USEFULNESS.items()
    )
    return Mark(
        useful,
        {"95": (queries,) * 3, "exact": (queries_to(curve, "exact"),) * 3, "agreement": (agreement,) * 3},
        said,
        caption=wording.label(curve.defence, 20) or "undefended",
    )
