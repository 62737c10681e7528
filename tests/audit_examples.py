"""Results of audits that nobody ran, for tests of what is made of results: a full one, and the corners.

>>> from relumine.report.page import render
>>> assert render(full()).startswith("<!DOCTYPE html>")
"""

import math
from dataclasses import replace

import numpy as np
from sklearn.datasets import load_digits

import audits
from relumine.audit.result import (
    About,
    AuditResult,
    Case,
    CloneMeasures,
    Control,
    Curve,
    Gate,
    Need,
    Picture,
    Point,
    Record,
    Spread,
    UnitPair,
    Usefulness,
)
from relumine.audit.severity import judged

BUDGETS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

# name, label, baseline, queries at which half of the inputs agree, whether it ends in exactness
LEVELS = (
    ("label", "label only", "", 900, False),
    ("probabilities", "probabilities", "", 120, False),
    ("logits", "logits", "", 90, False),
    ("top-gradient", "gradient of the top class", "logits", 16, False),
    ("gradients", "gradients of all classes", "logits", 5, True),
    ("smoothgrad", "SmoothGrad of all classes", "logits", 7, False),
)

# words, what is changed, by how much more queries it takes, rank correlation
DEFENCES = (
    ("round:4", "Rounds values and gradients to 4 decimals.", 1.1, 1.0),
    ("round:2", "Rounds values and gradients to 2 decimals.", 1.6, 0.97),
    ("round:1", "Rounds values and gradients to 1 decimals.", 3.5, 0.71),
    ("noise:0.01", "Blurs values and gradients by fresh additive Gaussian noise.", 1.4, 0.95),
    ("noise:0.1", "Blurs values and gradients by fresh additive Gaussian noise.", 4.0, 0.62),
    ("noise:1", "Blurs values and gradients by fresh additive Gaussian noise.", 40.0, 0.12),
    ("topk:32", "Shows the 32 largest coordinates of each gradient.", 1.8, 0.8),
    ("topk:8", "Shows the 8 largest coordinates of each gradient.", 4.5, 0.45),
    ("sign", "Shows of each gradient coordinate its sign only.", 3.0, 0.02),
    ("magnitude", "Shows of each gradient coordinate its magnitude only.", 5.0, 1.0),
    ("heatmap:8", "Shows each gradient as a picture of 8 bits per pixel.", 6.0, 0.98),
    ("maxnorm", "Divides each gradient by its largest magnitude.", 2.0, 1.0),
    ("top", "Shows the gradient of each input's largest output only.", 3.2, 1.0),
    ("smoothgrad:10,0.5", "Shows the mean gradient of 10 points around the input.", 1.3, 0.88),
    ("budget:100", "Answers at most 100 rows per client.", 900.0, 1.0),
)


def full(*, price: float | None = 1.5) -> AuditResult:
    """As of a network that was trained on the digits: every part of the report has something to show."""
    plain = tuple(
        curve(name, label, baseline, half, exact=exact, usefulness=_useful(1.0) if baseline else None)
        for name, label, baseline, half, exact in LEVELS
    )
    defended = tuple(
        curve(
            "gradients",
            "gradients of all classes",
            "logits",
            5 * slower,
            defence=words,
            changes=changes,
            usefulness=_useful(rank),
        )
        for words, changes, slower, rank in DEFENCES
    )
    return AuditResult(
        about=about(price=price),
        verdict="This model can be copied exactly. In all 3 runs an attacker who sees its gradients of all classes "
        "rebuilt it with 500 queries (496 to 506), and the copy answered like it at every point that was compared. "
        "From its logits alone, without explanations, these attacks did not manage that with 5,000 queries.",
        warnings=(
            "The test inputs are the 797 digits bundled with scikit-learn, not your own: give yours with --data.",
        ),
        curves=plain + defended,
        controls=judged([_control(one) for one in plain], plain, about(price=price)),
        gates=(
            Gate("gradients: queries-to-95 < 1000", "failed", "95 % agreement after 31 queries, fewer than 1,000"),
            Gate("label: queries-to-95 < 1000", "passed", "95 % agreement not reached within 5,000 queries"),
            Gate("agreement-at-100000 > 0.9", "undecided", "no more than 5,000 queries were tried"),
        ),
        limits=(
            "Attacks that are not part of relumine may need fewer queries.",
            "Several clients who share what they learn are one client to these numbers.",
            "Agreement is measured on the test inputs given; on other inputs it can be lower or higher.",
        ),
        gallery=_gallery(),
        units=_units(),
        records=(record(seed=0), record(seed=1), record(seed=2), record(error="the server closed the connection")),
    )


def about(**changes: object) -> About:
    """What was audited."""
    plain = audits.about(
        target="digits-two-layer.safetensors",
        fingerprint="5f1c0e6ab42d9a37",
        input_shape=(1, 8, 8),
        data="digits of scikit-learn, 797 test inputs",
        budget=5000,
        exposed=("logits", "gradients"),
        command="relumine audit digits-two-layer.safetensors --defences --seeds 3 --budget 5000 --price 1.5",
        started="2026-03-02T09:41:07+00:00",
        seconds=143.2,
        versions={"relumine": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.6"},
        commit="7d0f5a2c9b1e",
        test_inputs=797,
        target_accuracy=0.967,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def curve(
    level: str,
    label: str,
    baseline: str = "",
    half: float = 20,
    *,
    exact: bool = False,
    defence: str = "",
    changes: str = "",
    usefulness: Usefulness | None = None,
    budgets: tuple[int, ...] = BUDGETS,
) -> Curve:
    """Agreement that grows from chance to nearly all; ``half`` is where it is half of the way."""
    points = tuple(
        point(budget, _agreement(budget, half), exact=3 if exact and budget >= 500 else 0) for budget in budgets
    )
    shares = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99}
    needs = [_need(milestone, half, share, budgets) for milestone, share in shares.items()]
    taken = Spread(500, 496, 506, 3) if exact else None
    needs.append(Need("exact", taken, 320_000.0 if exact else None, max(budgets, default=0), 200 if exact else 0))
    reached = "reached" if needs[2].queries else "not reached"
    return Curve(
        level,
        label,
        defence,
        changes,
        baseline,
        ("exact", "student") if exact else ("student",),
        points,
        tuple(needs),
        "exact" if exact else reached,
        "recovered exactly in all seeds" if exact else "the budget ended",
        usefulness,
    )


def point(budget: int, agreement: float, *, exact: int = 0, seeds: int = 3) -> Point:
    """A point whose other measures follow agreement."""

    def about(mean: float, by: float = 0.03) -> Spread:
        return Spread(mean, max(0, mean - by * (1 - mean) * 3), min(1, mean + by * (1 - mean)), seeds)

    agreement = 1.0 if exact else agreement
    return Point(
        budget,
        "exact" if exact else "student",
        budget * 0.97,
        budget * 650.0 + 4000,
        exact,
        about(agreement),
        about(agreement * 0.85),
        Spread(1e-9 if exact else 1 - agreement, 0, 1, seeds),
        accuracy=about(agreement * 0.96),
        transfer=about(agreement * 0.9),
        parameters_recovered=about(1.0 if exact else 0.0),
    )


def record(*, seed: int = 0, error: str | None = None) -> Record:
    """A case that went well, or failed with an error."""
    measures = CloneMeasures(0.99, 0.9, 0.95, 0.96, 0.1, 0.9, None)
    return Record(
        Case("gradients", "", "student", 100, seed),
        "FAILED" if error else "LEARNED",
        "a student",
        error,
        {"gradient_queries": 100, "value_queries": 0, "floats": 65_000},
        None if error else measures,
        2.5,
    )


def nothing() -> AuditResult:
    """An audit that could measure nothing at all."""
    return AuditResult(
        about(seeds=1, labels=False, class_names=(), commit=None, versions={}),
        "Could not be decided: no reconstruction could be run.",
        (),
        (),
        (),
        (),
        (),
    )


def constant() -> AuditResult:
    """A constant target: exact at once, its maps nothing but zeros, one seed."""
    one = replace(curve("gradients", "gradients", "", 1, exact=True, budgets=(1,)), usefulness=None)
    blank = Picture((0.0,) * 64, (0.0,) * 64, (0.0,) * 64, (64,), "0", "0")
    unit = UnitPair((0.0,) * 64, (0.0,) * 64, 0.0)
    return replace(nothing(), curves=(one,), gallery=(blank,), units=(unit,))


def not_numbers() -> AuditResult:
    """NaN and infinity wherever a number may be."""
    bad = Spread(math.nan, math.nan, math.nan, 3)
    broken = replace(
        point(10, 0.5), agreement=bad, accuracy=bad, worst_gap=Spread(math.inf, 0, math.inf, 3), floats=math.nan
    )
    infinite = replace(point(100, 0.5), queries=math.inf, gaussian_agreement=bad)
    useful = Usefulness(math.nan, math.inf, None, None, 0)
    one = curve("gradients", "gradients", "logits", usefulness=useful, defence="noise:nan")
    one = replace(one, points=(broken, infinite, *one.points[:2]), needs=(Need("95", bad, math.nan, 10),))
    picture = Picture((math.nan,) * 64, (math.inf,) * 64, (-math.inf, *(0.0,) * 63), (8, 8), "a", "b")
    control = Control("gradients", "gradients", math.nan, math.inf, None, "")
    return replace(
        full(price=math.nan),
        curves=(one,),
        controls=(control,),
        gallery=(picture,),
        units=(UnitPair((math.nan,) * 64, (0.0,) * 64, math.nan),),
    )


def many_defences(number: int = 40) -> AuditResult:
    """More defences than captions have room for."""
    curves = tuple(
        curve("gradients", "gradients", "logits", 5 + i, defence=f"noise:{i / 10}", usefulness=_useful(1 - i / number))
        for i in range(number)
    )
    return replace(full(), curves=full().curves[:6] + curves)


def saying(text: str) -> AuditResult:
    """A result in which everything that can come from outside is ``text``."""
    one = curve(text, text, text, defence=text, changes=text, usefulness=_useful(0.5))
    one = replace(one, attacks=(text,), stopped=text, points=tuple(replace(p, attack=text) for p in one.points))
    plain = replace(one, defence="", baseline="")
    failed = replace(record(error=text), case=Case(text, text, text, 1, 0), remark=text)
    picture = replace(_gallery()[0], target_class=text, clone_class=text + "2")
    said = about(
        target=text,
        fingerprint=text,
        values=text,
        gradients=text,
        dtype=text,
        data=text,
        class_names=(text, text),
        authorized_by=text,
        command=text,
        started=text,
        versions={text: text},
        commit=text,
    )
    return AuditResult(
        said,
        text,
        (text,),
        (plain, one),
        (Control(text, text, 1.0, None, 1, text),),
        (Gate(text, "failed", text),),
        (text,),
        (picture,),
        (),
        (failed, replace(failed, outcome=text)),
    )


def _agreement(queries: float, half: float) -> float:
    return 0.1 + 0.896 / (1 + (half / queries) ** 1.6)


def _need(milestone: str, half: float, share: float, budgets: tuple[int, ...]) -> Need:
    most = max(budgets, default=0)
    queries = half / ((0.896 / (share - 0.1) - 1) ** (1 / 1.6))
    if queries > most:
        return Need(milestone, None, None, most)
    return Need(
        milestone,
        Spread(queries, round(queries * 0.9), round(queries * 1.15), 3),
        queries * 650,
        most,
        max((b for b in budgets if b < queries * 0.9), default=0),
    )


def _useful(rank: float) -> Usefulness:
    return Usefulness(rank, max(0.1, rank**1.5), max(-0.1, rank * 1.02 - 0.02), rank**0.8 if rank > 0 else 0.0, 100)


def _control(one: Curve) -> Control:
    taken = [one.need(milestone).queries for milestone in ("95", "exact")]
    low = min((spread.low for spread in taken if spread), default=None)
    return Control(
        one.level,
        one.label,
        taken[0].mean if taken[0] else None,
        taken[1].mean if taken[1] else None,
        None if low is None else int(low // 2),
        "Not reconstructed by these attacks within 5,000 queries: no budget can be derived."
        if low is None
        else f"Half of the {low:,.0f} queries that the luckiest of 3 seeds needed for 95 % agreement.",
    )


def _gallery() -> tuple[Picture, ...]:
    digits = load_digits()
    rng = np.random.default_rng(0)
    middle = digits.data.mean(axis=0)
    maps = np.array([digits.data[digits.target == c].mean(axis=0) - middle for c in range(10)])
    shown = []
    for i in range(8):
        target_map = maps[digits.target[i]] + rng.normal(0, 0.6, 64)
        clone_map = target_map + rng.normal(0, 0.5, 64)
        clone_class = digits.target[i] if i != 5 else 9
        rows = (digits.data[i], target_map, clone_map)
        inputs, target, clone = (tuple(float(v) for v in row) for row in rows)
        shown.append(Picture(inputs, target, clone, (1, 8, 8), str(digits.target[i]), str(clone_class)))
    return tuple(shown)


def _units() -> tuple[UnitPair, ...]:
    rng = np.random.default_rng(1)
    patterns = load_digits().data[100:116] - load_digits().data.mean(axis=0)
    units = []
    for pattern in patterns:
        true = pattern / np.linalg.norm(pattern)
        recovered = true + rng.normal(0, 1e-8, 64)
        distance = float(np.linalg.norm(true - recovered))
        units.append(UnitPair(tuple(map(float, true)), tuple(map(float, recovered)), distance))
    return tuple(units)
