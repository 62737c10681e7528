"""The two charts of an audit: how agreement grows with queries, and what each defence costs its honest reader."""

import math
from collections.abc import Sequence

from relumine.audit.result import AuditResult, Curve, Point
from relumine.report import wording
from relumine.report.chart import Axis, Chart, Mark, Series, logarithmic
from relumine.text import count, per_cent, plural

_PER_CENT = tuple((share, f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 0.9, 1))


def leakage(result: AuditResult) -> Chart | None:
    """Agreement against queries, a line per curve; defended ones begin switched off. None where there is nothing."""
    curves = [curve for curve in result.curves if curve.points]
    if not curves:
        return None
    majority = result.about.majority
    known = majority is not None and 0 <= majority <= 1
    label = f"↑ clone {wording.agrees(result.about)} (test inputs)"
    return Chart(
        "leakage",
        _logarithmic("queries asked →", [point.queries for curve in curves for point in curve.points]),
        Axis(label, 0, 1, _PER_CENT, reference=majority if known else None, reference_text="a constant guess"),
        tuple(_line(curve, look) for curve, look in zip(curves, looks(result, curves), strict=True)),
    )


def looks(result: AuditResult, curves: Sequence[Curve]) -> list[int]:
    """A colour per exposed output, in the order of the result."""
    levels = list(dict.fromkeys(curve.level for curve in result.curves))
    return [levels.index(curve.level) for curve in curves]


def _logarithmic(label: str, values: list[float], beyond: str = "") -> Axis:
    low, high, ticks = logarithmic(values)
    return Axis(label, low, high, ticks, logarithmic=True, beyond=beyond)


def _line(curve: Curve, look: int) -> Series:
    return Series(
        wording.short(curve.name, 80),
        look,
        tuple(_point(curve, point) for point in curve.points),
        dashed=not curve.baseline,
        shown=not curve.defence,
    )


def _point(curve: Curve, point: Point) -> Mark:
    said = f"{wording.short(curve.name, 80)}: {wording.with_spread(point.agreement)} agreement "
    said += f"after {count(point.queries)} queries; attack {wording.short(point.attack, 60)}, "
    said += plural(point.agreement.seeds, "seed")
    if point.exact:
        said += f"; recovered exactly in {point.exact} of {point.agreement.seeds}"
    agreement = point.agreement
    return Mark(point.queries, (agreement.mean, agreement.low, agreement.high), said, ringed=point.exact > 0)


def frontier(result: AuditResult) -> Chart | None:
    """What an attacker needs against what the explanation is worth, a point per defence; None without defences."""
    curves = [curve for curve in result.curves if curve.usefulness is not None and curve.points]
    if not any(curve.defence for curve in curves):
        return None
    levels = list(dict.fromkeys(curve.level for curve in curves))
    ticks = tuple((tick / 4, f"{tick / 4:g}") for tick in range(5))
    return Chart(
        "frontier",
        Axis("usefulness: rank correlation with undefended →", -0.04, 1.1, ticks),  # room for captions
        _logarithmic(
            "↑ queries to 95 % agreement: more is better", [queries_to(curve, "95") for curve in curves], "not reached"
        ),
        tuple(_defences(result, [curve for curve in curves if curve.level == level]) for level in levels),
    )


def queries_to(curve: Curve, milestone: str) -> float:
    """The mean number of queries that a milestone took, infinite where it was not reached."""
    queries = curve.need(milestone).queries
    return math.inf if queries is None else queries.mean


def best(curve: Curve) -> Point | None:
    """The point with the most agreement; None where there is none."""
    known = [point for point in curve.points if not math.isnan(point.agreement.mean)]
    return max(known, key=lambda point: point.agreement.mean, default=None)


def _defences(result: AuditResult, curves: list[Curve]) -> Series:
    name = wording.short(curves[0].label, 80)
    return Series(name, looks(result, curves)[0], tuple(_defence(curve) for curve in curves), lined=False)


def _defence(curve: Curve) -> Mark:
    assert curve.usefulness is not None
    queries, useful = queries_to(curve, "95"), curve.usefulness.rank_correlation
    reached = queries < math.inf
    taken = f"after {count(queries)} queries" if reached else f"not within {curve.tried:,} queries"
    said = f"{wording.short(curve.defence, 80) or 'no defence'} ({wording.short(curve.label, 80)}): 95 % {taken}, "
    found = best(curve)
    said += f"best agreement {per_cent(found.agreement.mean if found else None)}; "
    said += f"rank correlation {wording.decimal(useful)}"
    return Mark(useful, (queries,) * 3, said, caption=wording.label(curve.defence, 20) or "undefended")
