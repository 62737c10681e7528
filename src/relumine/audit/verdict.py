"""The words of an audit: verdict, warnings, limits, and the number that a control needs.

No sentence here is stronger than its evidence. What was not reached was not reached *by these attacks within that
number of queries*; it is never called safe. Agreement that a constant guess has, too, is no evidence at all.
"""

from collections.abc import Collection, Iterator, Sequence
from math import floor, log10, sqrt

import numpy as np

from relumine.audit.curves import REACHED, cheapest
from relumine.audit.data import GAUSSIAN
from relumine.audit.result import MILESTONES, ORDINARY, About, Control, Curve, Need, Record, Spread
from relumine.audit.severity import judged
from relumine.measures import CLOSE
from relumine.text import per_cent, plural

# Fewer seeds or test inputs than these leave a figure's spread open.
_SEEDS = 3
_TEST_INPUTS = 200

# A classifier that beats guessing by less than this share of what is possible looks untrained.
_LEARNED = 0.1

_REACHED = int(REACHED) / 100

# At most this many names in a sentence.
_FEW = 3


# Verdict


def verdict_of(curves: Sequence[Curve], about: About, records: Collection[Record] = ()) -> str:
    """What came out, in a few sentences for a reader who has never heard of these attacks."""
    plain = [curve for curve in curves if not curve.defence]
    own = [curve for curve in plain if curve.level in about.exposed] or plain
    exact, reached = cheapest(own, "exact"), cheapest(own, REACHED)
    if exact is None and reached is not None and _constant(about):
        return (
            f"No verdict on what leaks: {_constant_guess(about)}, so that a copy which has learned nothing looks as "
            "good as one that has."
        )
    if exact is not None:
        said = [_exact(exact, about), _ordinary(exact, about, records), _without_explanations(exact, plain, "exact")]
        said.append(f"There was little to copy: {_constant_guess(about)}." if _constant(about) else "")
    elif reached is not None:
        said = [_imitated(reached, about), _without_explanations(reached, plain, REACHED)]
    else:
        return _not_reached(own, about)
    return " ".join(filter(None, [*said, _behind_defences(curves, about)]))


def _exact(curve: Curve, about: About) -> str:
    need = curve.need("exact")
    return (
        f"This model can be copied exactly. {_first_up(_runs(need, about))} an attacker who sees its {curve.label} "
        f"rebuilt it with {_spread(need.queries)}, and the copy answered like it at every point that was compared."
    )


def _ordinary(curve: Curve, about: About, records: Collection[Record]) -> str:
    """What ordinary requests gave away, beside chosen inputs that gave everything."""
    own = [one for one in records if (one.case.level, one.case.attack) == (curve.level, ORDINARY.name)]
    plain = [(one.case.budget, one.queries, one.measures.agreement) for one in own if one.measures is not None]
    for budget in sorted({budget for budget, _, _ in plain}):
        queries, agreement = np.mean([one[1:] for one in plain if one[0] == budget], axis=0)
        if agreement >= _REACHED and not _constant(about):
            return (
                f"Even {queries:,.0f} ordinary requests, none of them chosen, gave a copy that {_agrees(about)} on "
                f"{per_cent(agreement)} of the {_inputs(about)}."
            )
    return ""


def _imitated(curve: Curve, about: About) -> str:
    need = curve.need(REACHED)
    return (
        f"This model can be imitated. {_first_up(_runs(need, about))} an attacker who sees its {curve.label} needed "
        f"{_spread(need.queries)} for a copy that {_agrees(about)} on at least {REACHED} % of the {_inputs(about)}."
    )


def _without_explanations(curve: Curve, plain: list[Curve], milestone: str) -> str:
    baseline = next((one for one in plain if one.level == curve.baseline), None)
    if baseline is None:
        return ""
    need = baseline.need(milestone)
    if need.queries is not None:
        return f"From its {baseline.label} alone, without explanations, the same took {_spread(need.queries)}."
    if baseline.status == "inconclusive":
        return f"Whether its {baseline.label} alone would do is open: attacks ended with an error."
    return (
        f"From its {baseline.label} alone, without explanations, these attacks did not manage that with "
        f"{queries(need.tried)}."
    )


def _not_reached(own: list[Curve], about: About) -> str:
    open_ones = [curve for curve in own if curve.status == "inconclusive"]
    ended = [curve for curve in own if curve.status != "inconclusive"]
    if not own or not ended:
        return f"No verdict: {'at every level attacks ended with an error' if own else 'nothing was tried'}."
    said = f"within {_range_of([curve.need(REACHED).tried for curve in ended])}"
    best = max((point.agreement.mean for curve in ended for point in curve.points), default=None)
    copy = "no copy was made"
    if best is not None:
        share = f"{per_cent(best)} of the {_inputs(about)}"
        copy = f"the best copy {_agrees(about)} on {share}{_beside_guessing(best, about)}"
    if open_ones:
        names = ", ".join(curve.label for curve in open_ones)
        return (
            f"No verdict: attacks on {names} ended with an error. Those that ran did not reconstruct the model {said} "
            f"({copy})."
        )
    return f"Not reconstructed by these attacks {said}: {copy}."


def _behind_defences(curves: Sequence[Curve], about: About) -> str:
    """How many defences held, as far as they were tried."""
    defended = [curve for curve in curves if curve.defence and curve.status != "inconclusive"]
    if not defended or _constant(about):
        return ""
    held = [curve for curve in defended if curve.status == "not reached"]
    if not held:
        return f"No defended version of {len(defended)} tried kept these attacks below {REACHED} %."
    names = ", ".join(dict.fromkeys(curve.defence for curve in held[:_FEW])) + (", …" if len(held) > _FEW else "")
    tried = _range_of([curve.need(REACHED).tried for curve in held])
    return f"Of {len(defended)} defended versions, {len(held)} ({names}) kept them below {REACHED} % with {tried}."


def _constant(about: About) -> bool:
    return about.majority is not None and about.majority >= _REACHED


# Warnings


def warnings_of(curves: Sequence[Curve], about: About, records: Collection[Record] = ()) -> tuple[str, ...]:
    """What voids or weakens the verdict, the gravest first."""
    found = (_of_errors(curves, records), _of_constancy(about), _of_learning(about), *_of_inputs(about))
    return tuple(filter(None, found))


def _of_errors(curves: Sequence[Curve], records: Collection[Record]) -> str:
    failed = [record for record in records if record.failed]
    if failed:
        return (
            f"{len(failed)} of {len(records)} cases ended with an error, the first ({failed[0].case.attack}, "
            f"{failed[0].case.level}): {failed[0].error}. What they would have found is not known."
        )
    names = [curve.name for curve in curves if curve.status == "inconclusive"]
    return f"Attacks ended with an error: {', '.join(names)}. What they would have found is not known." if names else ""


def _of_constancy(about: About) -> str:
    trivial = [f"{milestone:.0%}".replace("%", " %") for milestone in MILESTONES if milestone <= (about.majority or 0)]
    if not trivial:
        return ""
    return (
        f"{_first_up(_constant_guess(about))}: an agreement of {' or '.join(trivial)} shows nothing. Judge by "
        "agreement above that, or give inputs of all classes with --data."
    )


def _constant_guess(about: About) -> str:
    share = per_cent(about.majority or 0)
    if about.regression:
        return f"one constant number agrees with the model on {share} of the {_inputs(about)}"
    return f"the model puts {share} of the {_inputs(about)} in one class"


def _of_learning(about: About) -> str:
    chance = 1 / max(about.outputs, 2)
    if about.target_accuracy is None or about.target_accuracy >= chance + _LEARNED * (1 - chance):
        return ""
    return (
        f"The model gives the true label of {per_cent(about.target_accuracy)} of the test inputs, hardly more than "
        f"guessing does ({per_cent(chance)}): it is untrained, or inputs or labels are prepared otherwise than in its "
        "training. What was found holds for the model as it answered here."
    )


def _of_inputs(about: About) -> Iterator[str]:
    """What the model's answers, the inputs and the number of runs leave open."""
    if about.values == "label":
        yield (
            "The model answers labels only. Exact reconstruction needs numbers, so only learned copies were tried "
            "where no explanation is shown; searches along the decision boundary were not."
        )
    if about.data == GAUSSIAN:
        yield (
            "No data was given: attackers asked random inputs, and copies were compared on random inputs. On real "
            "inputs they may agree much more, or much less. Give some with --data."
        )
    if about.regression:
        yield (
            f"The model answers numbers, not classes: a copy agrees where it is within {per_cent(CLOSE)} of the "
            "standard deviation of the model's answers."
        )
    if about.seeds < _SEEDS:
        times = "once" if about.seeds == 1 else "twice"
        yield f"Each attack was run only {times}: luck cannot be told from skill. Use --seeds {_SEEDS} or more."
    if about.pool is not None and about.pool < about.budget:
        yield (
            f"Attackers had {plural(about.pool, 'input')}; with larger budgets they asked mixtures of these, too. With "
            "more inputs of their own they may do better: give more with --data."
        )
    if 0 < about.test_inputs < _TEST_INPUTS:
        error = 2 * sqrt(_REACHED * (1 - _REACHED) / about.test_inputs)
        yield (
            f"Copies were compared on {about.test_inputs} inputs only: an agreement of {REACHED} % may be off by "
            f"{per_cent(error)}."
        )


# Limits


def limits_of(curves: Sequence[Curve], about: About) -> tuple[str, ...]:
    """What the audit cannot tell."""
    found = [
        "Only the attacks named here were tried, with the budgets named here. Another attack, more queries, or several "
        "clients who share their answers may do better: «not reached» is no proof that it cannot be done.",
        "«Exact» means: equal, up to rounding, at every fresh point that was compared. It is no proof of equality "
        "everywhere.",
        "Learned copies were networks and models of scikit-learn, of a few kinds. An attacker who knows the "
        "architecture, or has more time, may need fewer queries.",
        f"Agreement was counted on {about.test_inputs:,} {_inputs(about)}; elsewhere it may differ.",
        "Between two budgets nothing was tried, and nothing was interpolated: the true price lies anywhere between the "
        "largest budget that failed and what was spent by the case that succeeded.",
        "It is about copying the model through its answers. It says nothing about training data that answers give "
        "away, nor about copies made in other ways.",
    ]
    if about.data != GAUSSIAN:
        found.append(
            "Attackers were given inputs like those that the model is for, without labels. Who has none may need more "
            "queries."
        )
    if not about.labels:
        found.append("Without labels it is not known whether the model is right, nor whether a copy is.")
    if any(curve.defence for curve in curves):
        found.append(
            "Attackers knew which defence there was and how it was set. Usefulness compares which coordinates matter "
            "most; readers who need signs or sizes may lose more."
        )
    return tuple(found)


# Controls


def controls_of(curves: Sequence[Curve], about: About) -> tuple[Control, ...]:
    """The number that OWASP AISVS 1.0 (11.2.2, 11.3.2) asks for, per exposed output: the price of MITRE ATLAS
    AML.T0024.002, and a budget per client that stays below it. With severity and advice."""
    return judged([_control(curve, about) for curve in curves if not curve.defence], curves, about)


def _control(curve: Curve, about: About) -> Control:
    # Agreement that a constant guess has is not what a client's queries gave away.
    asked = [curve.need("exact")] if _constant(about) else [curve.need(REACHED), curve.need("exact")]
    reached = {need.milestone: need.queries.low for need in asked if need.queries is not None}
    suggested = _suggested([need for need in asked if need.queries is not None])
    return Control(
        level=curve.level,
        label=curve.label,
        queries_to_95=reached.get(REACHED),
        queries_to_exact=reached.get("exact"),
        suggested=suggested,
        evidence=_took(curve, asked, suggested, about) if reached else _took_more(curve, asked),
    )


def _suggested(reached: Sequence[Need]) -> int | None:
    """At most half of the smallest price, and no more than was tried without success: not tried is not known."""
    prices = [need.queries.low for need in reached if need.queries is not None]
    if not prices:
        return None
    half, missed = _rounded_down(min(prices) / 2), min(need.missed for need in reached)
    if half > 1 and not missed:
        return None
    return min(half, missed) if min(half, missed) > 1 else 0  # a client that may ask once in its life is not served


def _took(curve: Curve, asked: Sequence[Need], suggested: int | None, about: About) -> str:
    prices = [
        f"{need.goal} took {queries(need.queries.low)} at least, {_runs(need, about)}"
        for need in asked
        if need.queries is not None
    ]
    price = _first_up("; ".join(prices))
    if suggested is None:
        return f"{price}. Nothing smaller was tried without an error, so no budget follows."
    if suggested == 0:
        return f"{price}. No limit that leaves a client anything to ask is small enough."
    within = [point for point in curve.points if point.queries <= suggested]
    seen = (
        f"; with {queries(within[-1].queries)} the best copy agreed on {per_cent(within[-1].agreement.high)}"
        if within
        else ""
    )
    return f"{price}. Suggested is at most half of that, and no more than was tried without success{seen}."


def _took_more(curve: Curve, asked: Sequence[Need]) -> str:
    tried = max(need.tried for need in asked)
    if curve.status == "inconclusive":
        return "Attacks ended with an error: no number follows from the others."
    if not tried:
        return "No attack that was tried could use what is exposed here: no number follows."
    goals = " nor ".join(need.goal for need in asked)
    return (
        f"{'Neither' if len(asked) > 1 else 'No'} {goals} by these attacks with {queries(tried)}. No limit follows "
        "from that, except that these were not enough for them."
    )


def _rounded_down(number: float) -> int:
    """To two digits, downwards."""
    if number < 1:
        return 0
    unit = 10 ** max(0, floor(log10(number)) - 1)
    return int(number // unit * unit)


# Words


def _runs(need: Need, about: About) -> str:
    """In how many runs a milestone was reached."""
    seeds = need.queries.seeds if need.queries else 0
    if seeds == about.seeds:
        return "in the only run" if seeds == 1 else "in both runs" if seeds == 2 else f"in all {seeds} runs"
    return f"in {seeds} of {about.seeds} runs"


def _agrees(about: About) -> str:
    return "comes close to it" if about.regression else "gives the same class"


def _inputs(about: About) -> str:
    return "random inputs" if about.data == GAUSSIAN else "test inputs"


def _beside_guessing(best: float, about: About) -> str:
    if about.majority is None:
        return ""
    guess = "the best constant answer" if about.regression else "always answering the most frequent class"
    share = per_cent(about.majority)
    return f", {guess} on {share}" if best > about.majority else f", which is no better than {guess} ({share})"


def _spread(spread: Spread | None) -> str:
    assert spread is not None
    if spread.low == spread.high:
        return queries(spread.mean)
    return f"{queries(spread.mean)} ({spread.low:,.0f} to {spread.high:,.0f})"


def _range_of(numbers: Sequence[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return queries(high) if low == high else f"{low:,} to {queries(high)}, depending on what is shown"


def queries(number: float) -> str:
    """«1 query», «1,234 queries»."""
    return plural(round(number), "query", "queries")


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
