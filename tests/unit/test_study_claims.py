"""The declared studies, and the paper's claims judged on invented rows."""

import csv
import math
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import relumine as rl
from relumine.study import Experiment, Measures, Provenance, Row
from relumine.study.claims import CLAIMS, Finding, findings
from relumine.study.designs import FIGURES, GRADIENT, SALIENCY, SCALES, figure, scale_named
from relumine.study.figures import draw_curves, draw_maps
from relumine.study.page import numbers, page
from relumine.study.results import MeasuredPoint, Results, queries_to_reach
from relumine.study.trial import SIGMAS, Maps, MapsWanted

LAPTOP = scale_named("laptop")
SPENT = {"value_queries": 1, "gradient_queries": 1, "floats": 20}


def invented(name: str, accuracy: Callable[[Experiment], float], scale=LAPTOP) -> Results:
    """Rows of a figure whose accuracies are made up, for a target of 98 %."""
    made = Provenance(1.0, "here", "now", None, {"relumine": rl.__version__})
    return Results(
        figure(name, scale),
        [
            Row(e, "FITTED", None, "", SPENT, Measures(accuracy(e), 0.98, 0.5, 0.5, 0.5), made)
            for e in figure(name, scale).experiments
        ],
    )


def rising(gradient: float, membership: float) -> Callable[[Experiment], float]:
    """30 points per decade of queries, from these accuracies at one query."""

    def accuracy(e: Experiment) -> float:
        start = membership if e.loss == "membership" else gradient
        return min(0.97, start + 0.3 * math.log10(e.budget))

    return accuracy


def verdicts(results: Results, subject: str) -> dict[str, str]:
    return {
        claim.says: finding.verdict
        for claim, finding in findings({results.figure.name: results})
        if claim.subject == subject
    }


@pytest.mark.parametrize("scale", SCALES)
def test_every_figure_of_the_paper_is_declared_at_every_scale(scale):
    chosen = scale_named(scale)
    for name in FIGURES[:-1]:
        declared = figure(name, chosen)
        assert len(declared.panels) == {"access": 1, "gaussian": 4, "noise": 3}.get(name, 6)
        assert {e.budget for e in declared.experiments}
        assert len({panel.title for panel in declared.panels}) == len(declared.panels)
    assert [network for _, network in SALIENCY] == ["conv", "vgg11", "resnet18"]


def test_scales_are_what_they_are_said_to_be():
    smoke, laptop, paper = (
        {e.key: e for name in FIGURES for e in figure(name, scale_named(scale)).experiments}.values()
        for scale in SCALES
    )
    assert {e.target.data for e in smoke} == {"digits"}
    assert {e.target.data for e in laptop} == {"mnist", "cifar10"}
    steps = [sum(e.settings.get("steps", 0) for e in some) for some in (smoke, laptop, paper)]
    assert 25 * steps[0] < 5 * steps[1] < steps[2]
    assert {e.student.network for e in paper} == {"linear", "two_layer", "conv", "vgg11", "resnet18"}
    mnist = [e for e in laptop if e.target.data == "mnist" and e.loss in ("joint", "membership")]
    assert {e.seed for e in mnist} == {0, 1, 2}
    decades = {1, 10, 100, 1000, 10_000}
    assert {e.budget for e in mnist if e.source == "gaussian"} == decades
    assert {e.budget for e in mnist} == decades | {3, 30, 300}


def test_the_same_smoothgrad_is_learned_with_the_same_settings_in_every_figure():
    noise, main = figure("noise", LAPTOP), figure("main", LAPTOP)
    shared = {e.key for e in noise.experiments} & {e.key for e in main.experiments}
    assert {e.access.sigma for e in noise.experiments if e.access.explanation == "smoothgrad"} == {0.1, 1.0}
    assert {e.key for e in noise.experiments if e.access.sigma != 0.1} == shared
    conv = noise.panels[0]
    weights = {curve.name: conv.experiment(curve, 100, 0).settings.get("weight") for curve in noise.curves}
    assert weights == {"membership": None, "gradient": None, "little": None, "smoothgrad": 1.0}


def test_queries_are_read_off_the_curve_on_a_logarithmic_scale():
    points = [MeasuredPoint(budget, mean, mean, mean, 1) for budget, mean in ((1, 0.2), (10, 0.4), (1000, 0.8))]
    assert queries_to_reach(points, 0.1) == 1
    assert queries_to_reach(points, 0.4) == 10
    assert queries_to_reach(points, 0.6) == pytest.approx(100)
    assert queries_to_reach(points, 0.9) is None


def test_curves_have_mean_and_spread_over_seeds():
    results = invented("main", lambda e: 0.5 + 0.1 * e.seed)
    (point,) = (p for p in results.points(results.panel("mnist conv"), GRADIENT) if p.budget == 10)
    assert (point.mean, point.low, point.high, point.seeds) == pytest.approx((0.6, 0.5, 0.7, 3))
    assert results.target_accuracy(results.panel("mnist conv")) == 0.98


def test_a_target_that_was_trained_anew_for_some_rows_is_told():
    results = invented("main", lambda e: 0.5)
    assert "trained anew" not in page(LAPTOP, {"main": results}, {})
    rows = [
        replace(row, measures=replace(row.measures, target_accuracy=0.97)) if row.experiment.budget == 10_000 else row
        for row in results.rows
    ]
    mixed = Results(results.figure, rows)
    assert mixed.target_accuracies(mixed.panel("cifar10 vgg11")) == [0.98, 0.97]
    text = page(LAPTOP, {"main": mixed}, {})
    assert "CIFAR10, VGG11 98.00 % (trained anew for some rows: 97.00 %);" in " ".join(text.split())


def test_a_failed_row_leaves_a_gap():
    results = invented("main", lambda e: 0.5)
    panel = results.panel("mnist conv")
    rows = [replace(row, measures=None) if row.experiment.budget == 10 else row for row in results.rows]
    points = Results(results.figure, rows).points(panel, GRADIENT)
    assert [point.budget for point in points] == [1, 3, 30, 100, 300, 1000, 10_000]


@pytest.mark.parametrize(
    ("gradient", "membership", "verdict"),
    [(0.65, 0.05, "same"), (0.65, -0.25, "better"), (0.65, 0.35, "short"), (0.05, -0.95, "open")],
)
def test_times_fewer_is_judged_within_half_a_decade(gradient, membership, verdict):
    assert verdicts(invented("main", rising(gradient, membership)), "MNIST 2-layer") == {"100× fewer queries": verdict}


def test_without_data_queries_are_counted_at_the_highest_accuracy_that_both_reach():
    found = {}
    for membership in (0.3, 0.7):  # accuracies far below the target's
        results = invented("gaussian", lambda e, m=membership: m if e.loss == "membership" else 0.72)
        found |= {membership: verdicts(results, "MNIST 2-layer")["at least 1000× fewer queries"]}
    assert found == {0.3: "short", 0.7: "short"}  # one query of either kind is enough
    rising_late = invented("gaussian", lambda e: 0.1 + 0.5 * (e.budget == 10_000) if e.loss == "membership" else 0.9)
    assert verdicts(rising_late, "MNIST 2-layer") == {"at least 1000× fewer queries": "better"}


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.97, "better"), (0.945, "same"), (0.9, "short")])
def test_accuracy_is_judged_within_a_point(accuracy, verdict):
    found = verdicts(invented("main", lambda e: accuracy), "MNIST conv")
    assert found["95 % with 10 gradient queries"] == verdict


def finding_of(results: Results, subject: str, says: str) -> Finding:
    known = {(claim.subject, claim.says): finding for claim, finding in findings({results.figure.name: results})}
    return known[subject, says]


def test_findings_tell_the_spread_over_seeds():
    """Membership queries of later seeds take ten and a hundred times as many; a single seed has no spread."""

    def accuracy(e: Experiment) -> float:
        needed = 10.0 ** (1 + e.seed) if e.loss == "membership" else 1.0
        return 0.98 if e.budget >= needed else 0.2 + 0.01 * e.seed

    results = invented("main", accuracy)
    ratio = finding_of(results, "MNIST 2-layer", "100× fewer queries")
    assert re.search(r"by seed \d[.\d]*× to \d[.\d]*×;", ratio.ours), ratio.ours
    low, high = (float(number) for number in re.findall(r"([\d.]+)×", ratio.ours.split("by seed")[1].split(";")[0]))
    assert high / low == pytest.approx(100, rel=0.01)
    conv = finding_of(results, "MNIST conv", "95 % with 1,000 membership")
    assert conv.ours.startswith("98.0 % (98.0–98.0) with 1,000 membership queries")
    assert conv.seeds == 3
    one_seed = Results(results.figure, [row for row in results.rows if row.experiment.seed == 0])
    deep = finding_of(one_seed, "CIFAR10 VGG11", "10× fewer queries to reach 75 %")
    assert ("by seed" in deep.ours, deep.seeds) == (False, 1)


def test_a_seed_that_never_gets_there_is_told():
    results = invented("main", lambda e: 0.98 if e.loss != "membership" or e.budget * (e.seed != 2) >= 1000 else 0.9)
    rows = [row for row in results.rows if row.experiment.loss != "membership" or row.experiment.seed == 2]
    rows += [replace(row, measures=replace(row.measures, test_accuracy=1.0)) for row in results.rows if row not in rows]
    words = finding_of(Results(results.figure, rows), "MNIST conv", "100× fewer queries, to reach 95 %").ours
    assert "never in 1 of 3" in words


def test_one_query_gives_the_target_or_not():
    says = "one gradient query gives the target's accuracy"
    assert verdicts(invented("main", lambda e: 0.978), "MNIST 1-layer")[says] == "same"
    assert verdicts(invented("main", lambda e: 0.970), "MNIST 1-layer")[says] == "short"


@pytest.mark.parametrize(("until", "verdict"), [(1000, "same"), (100, "short")])
def test_times_fewer_to_be_as_good_as_the_target_is_counted_at_its_accuracy(until, verdict):
    """Values that come within 5 % of the target at once, and within half a point late."""

    def accuracy(experiment) -> float:
        return 0.98 if experiment.loss != "membership" or experiment.budget >= until else 0.96

    found = finding_of(invented("main", accuracy), "MNIST 1-layer", "1000× fewer queries, to be as good as the target")
    assert found.verdict == verdict
    assert found.ours.endswith("; 1× to reach 93.1 %")


@pytest.mark.parametrize(("by_logits", "verdict"), [(0.3, "short"), (0.71, "same"), (0.9, "better")])
def test_students_of_values_are_judged_by_the_better_of_both_losses(by_logits, verdict):
    def accuracy(e: Experiment) -> float:
        return 0.4 if e.settings.get("logits_by") == "cross-entropy" else by_logits

    found = finding_of(invented("gaussian", accuracy), "MNIST conv", "71 % with 10,000 membership")
    assert found.verdict == verdict
    assert found.ours.startswith("40.0 % (40.0–40.0) with 10,000 membership queries; compared by logits")


def test_ratios_tell_the_stronger_students_of_values_too():
    """Compared by logits, values need as many queries as gradients."""
    exact = invented("main", lambda e: rising(0.65, 0.05 if "logits_by" in e.settings else 0.65)(e))
    assert "; values by logits 1×)" in finding_of(exact, "MNIST 2-layer", "100× fewer queries").ours


def test_exact_methods_are_marked_and_told_where_they_recover(tmp_path):
    rows = invented("main", rising(0.5, 0.1)).rows
    marked = {
        row.experiment.key: replace(
            row,
            outcome="RECOVERED" if row.experiment.loss == "exact" else "NOT_VERIFIED",
            spent={"gradient_queries": 43, "value_queries": 144, "floats": 338_990},
        )
        for row in rows
        if row.experiment.source == "gaussian" or row.experiment.loss == "head"
    }
    results = Results(figure("main", LAPTOP), [marked.get(row.experiment.key, row) for row in rows])
    text = page(LAPTOP, {"main": results}, {})
    assert "| MNIST, 2-layer | exact | RECOVERED | 43 | 144 | 338,990 |" in text
    assert "| MNIST, conv | exact, public backbone | NOT_VERIFIED | 43 |" in text
    draw_curves(results, tmp_path, "invented")
    drawn = (tmp_path / "main.svg").read_text()
    assert drawn.count("<!-- exact: 43 gradient queries -->") == 2
    assert "backbone: 43" not in drawn


@pytest.mark.parametrize(("less", "verdict"), [(0.0, "same"), (0.05, "short"), (-0.05, "better")])
@pytest.mark.parametrize(("data", "subject"), [("mnist", "MNIST SmoothGrad"), ("cifar10", "CIFAR10 SmoothGrad")])
def test_smoothgrad_is_compared_with_raw_gradients_of_the_same_data(data, subject, less, verdict):
    def accuracy(e: Experiment) -> float:
        return 0.9 - less * (e.access.explanation == "smoothgrad" and e.target.data == data)

    results = invented("main", accuracy)
    assert [*verdicts(results, subject).values()] == [verdict]
    other = {"MNIST SmoothGrad": "CIFAR10 SmoothGrad", "CIFAR10 SmoothGrad": "MNIST SmoothGrad"}[subject]
    assert [*verdicts(results, other).values()] == ["same"]


def test_membership_queries_that_were_asked_less_often_tell_no_ratio():
    every = invented("unknown-class", lambda e: 0.3 if e.loss == "membership" else 0.09 + 0.3 * math.log10(e.budget))
    few = Results(
        every.figure, [row for row in every.rows if row.experiment.loss == "joint" or row.experiment.budget < 100]
    )
    found = {claim.subject: finding for claim, finding in findings({"unknown-class": few})}
    assert found["CIFAR10 ResNet-18 by VGG11"].verdict == "open"
    assert "10 membership queries do not" in found["CIFAR10 ResNet-18 by VGG11"].ours


def test_what_no_row_tells_is_open():
    assert {finding.verdict for _, finding in findings({"main": Results(figure("main", LAPTOP), [])})} == {"open"}


@pytest.mark.parametrize(("many", "verdict"), [(0.9, "same"), (0.5, "short")])
def test_students_of_other_classes_are_compared_with_each_other(many, verdict):
    """On average over budgets, and at none may the other pair come closer."""

    def accuracy(e: Experiment) -> float:
        return (many if e.budget == 1000 else 0.9) if e.student.network == "conv" else 0.6

    results = invented("unknown-class", accuracy)
    assert verdicts(results, "MNIST 2-layer by conv") == {"works much better than conv by 2-layer": verdict}


def test_claims_are_about_panels_that_exist():
    every = {name: Results(figure(name, LAPTOP), []) for name in FIGURES[:-1]}
    assert len(findings(every)) == len(CLAIMS) == 24


def test_drawings_have_a_panel_per_network_and_are_the_same_each_time(tmp_path):
    results = invented("main", rising(0.5, 0.1))
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        paths = draw_curves(results, folder, "invented")
    assert [path.name for path in paths] == ["main.png", "main.svg"]
    for name in ("main.png", "main.svg"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    ElementTree.parse(tmp_path / "one" / "main.svg")


def test_saliency_grids_are_drawn_grey_or_in_colour(tmp_path):
    for network, channels in (("conv", 1), ("vgg11", 3)):
        images = np.random.default_rng(0).random((2, channels, 6, 6))
        wanted = MapsWanted("invented", replace(LAPTOP.target("mnist", "conv"), network=network), 1.0, 5)
        one = Maps(wanted, images, tuple(images - 0.5 for _ in SIGMAS), (0.5,) * len(SIGMAS), (0.1,) * len(SIGMAS))
        assert all(path.stat().st_size > 1000 for path in draw_maps([one], tmp_path))
        assert len(one.records()) == len(SIGMAS)


def test_the_page_has_claims_numbers_pictures_and_failures(tmp_path):
    results = invented("gaussian", rising(0.5, 0.1))
    failed = replace(results.rows[0], outcome="FAILED", error="it rained", measures=None)
    known = {"gaussian": Results(results.figure, [failed, *results.rows[1:]])}
    text = page(LAPTOP, known, {"gaussian": [tmp_path / "gaussian.png"]})
    found = "80.0 % (80.0–80.0) with 10 gradient queries"
    assert f"| gaussian | MNIST conv | 84 % with 10 gradient queries | {found} | 3 | **short** |" in text
    assert "gaussian.png)" in text
    assert "it rained" in text
    assert "gaussian.jsonl)" in text
    assert "\nrelumine reproduce gaussian --scale laptop\n" in text
    assert f"relumine {rl.__version__}" in text


def test_the_points_of_a_figure_are_a_table_of_their_own():
    results = invented("gaussian", lambda e: 0.5 + 0.1 * e.seed)
    rows = list(csv.DictReader(numbers(results).splitlines()))
    measured = [(panel, curve) for panel in results.figure.panels for curve in results.figure.curves]
    assert len(rows) == sum(len(results.points(*each)) for each in measured) > 0
    assert {(row["mean"], row["low"], row["high"], row["seeds"]) for row in rows} == {("0.6", "0.5", "0.7", "3")}


def test_verdicts_on_stand_in_data_are_in_brackets():
    results = invented("main", rising(0.5, 0.1), scale_named("smoke"))
    text = page(scale_named("smoke"), {"main": results}, {})
    assert "(short)" in text
    assert "**short**" not in text
