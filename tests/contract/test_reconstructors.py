"""One list of reconstructors, one contract that all of them keep."""

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import relumine as rl
from problems import (
    FOREIGN,
    SMOOTH,
    Breaking,
    Capped,
    Counting,
    Lying,
    Noisy,
    Offering,
    Problem,
    error,
    linear,
    network,
    recovered,
    two_layer,
)
from relumine.reconstruct.export import load

RECOVERED = rl.Outcome.RECOVERED


@dataclass(frozen=True)
class Subject:
    """A reconstructor, a target of its own class, and what is demanded of it.

    exact:    how close what it recovers must be
    most:     a bound on its queries of any kind
    decimals: its target is recovered from answers of this many decimals or more; None: it may always give up
    float32:  whether its target is recovered from float32 that is offered as float64
    also:     targets among FOREIGN that it recovers
    """

    method: rl.Reconstructor
    target: Callable[..., Problem]
    exact: float = 1e-9
    most: int = 3000
    decimals: int | None = None
    float32: bool = True
    also: Collection[str] = ()

    def run(self, oracle: rl.Oracle, rng: int = 1) -> rl.Reconstruction:
        return self.method(Capped(oracle, self.most), rng=rng)


def of(*sizes: int, **fixed: object) -> Callable[..., Problem]:
    return lambda **fields: two_layer(*sizes, **{**fixed, **fields})


def paper(**fields: object) -> Problem:
    return two_layer(10, 4, paper=True, **fields)


def deep(*widths: int, **fixed: object) -> Callable[..., Problem]:
    return lambda **fields: network(*widths, **{**fixed, **fields})


def straight(**fields: object) -> Problem:
    return linear(3, **fields)


values_only = {"gradients": "none"}
probabilities = {"values": "probabilities"}
top_class = {"gradients": "top"}
DEEPER = ["two_hidden_layers"]
SUBJECTS: dict[str, Subject] = {
    "TwoLayer": Subject(rl.TwoLayer(), of(8, 5, 3), decimals=3, also=SMOOTH),
    "TwoLayer, K=1": Subject(rl.TwoLayer(), of(8, 5), decimals=3, also=SMOOTH),
    "TwoLayer, probabilities": Subject(rl.TwoLayer(), of(8, 5, 3, **probabilities), float32=False, also=SMOOTH),
    "TwoLayer, sigmoid": Subject(rl.TwoLayer(), of(8, 5, **probabilities), float32=False, also=["smooth"]),
    "TwoLayer, float32": Subject(rl.TwoLayer(), of(8, 5, 3, dtype="float32"), exact=1e-5, decimals=3, also=SMOOTH),
    "TwoLayer, top class": Subject(rl.TwoLayer(), of(8, 5, 3, **top_class), decimals=4),
    "TwoLayer, top class, float32": Subject(
        rl.TwoLayer(), of(8, 5, 3, dtype="float32", **top_class), exact=1e-4, decimals=4
    ),
    "TwoLayer, top probability": Subject(
        rl.TwoLayer(), of(8, 5, 3, **top_class, **probabilities), exact=1e-8, float32=False
    ),
    "TwoLayer, an output's gradient": Subject(rl.TwoLayer(), of(8, 5, 3, gradients=1), decimals=4),
    "TwoLayerFromValues": Subject(
        rl.TwoLayerFromValues(), of(8, 5, 3, **values_only), exact=1e-7, decimals=3, also=SMOOTH
    ),
    "TwoLayerFromValues, K=1": Subject(rl.TwoLayerFromValues(), of(8, 5, **values_only), exact=1e-7, decimals=3),
    "TwoLayerFromValues, float32": Subject(
        rl.TwoLayerFromValues(), of(8, 5, 3, dtype="float32", **values_only), exact=1e-6, decimals=3
    ),
    "TwoLayerFromValues, six decimals": Subject(
        rl.TwoLayerFromValues(), of(8, 5, decimals=6, **values_only), exact=1e-5, decimals=3
    ),
    "PaperTwoLayer": Subject(rl.PaperTwoLayer(4), paper, decimals=10, float32=False),
    "PaperTwoLayer, values only": Subject(
        rl.PaperTwoLayer(4), lambda **fields: paper(**{**values_only, **fields}), most=10_000, float32=False
    ),
    "Linear": Subject(rl.Linear(), straight, decimals=10, float32=False),
    "Linear, probabilities": Subject(
        rl.Linear(), lambda **fields: straight(**{**probabilities, **fields}), float32=False
    ),
    "Linear, values only": Subject(
        rl.Linear(), lambda **fields: straight(**{**values_only, **fields}), decimals=10, float32=False
    ),
    "Deep": Subject(rl.Deep(limit=1000), deep(16, 8, 4, 3), also=DEEPER),
    "Deep, K=1": Subject(rl.Deep(limit=1000), deep(24, 12, 6, 1), also=DEEPER),
    "Deep, probabilities": Subject(rl.Deep(limit=1000), deep(16, 8, 4, 3, **probabilities), also=DEEPER),
    # Noise of 1e-9 looks like smooth units, which Auto searches up to TwoLayer's limit.
    "Auto, deep": Subject(rl.Auto(), deep(10, 5, 3, 3), most=20_100, also=FOREIGN),
    "Auto, two layers": Subject(rl.Auto(), of(8, 5, 3), decimals=3, also=FOREIGN),
    "Auto, top class": Subject(rl.Auto(), of(8, 5, 3, **top_class), decimals=3),
    "Auto, two layers from values": Subject(rl.Auto(), of(8, 5, 3, **values_only), exact=1e-7, decimals=3, also=SMOOTH),
    "Auto, linear": Subject(rl.Auto(), straight, decimals=3, also=FOREIGN),
}


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


def those(holds: Callable[[Subject], bool]) -> pytest.MarkDecorator:
    """The subjects of which this holds."""
    names = [name for name, subject in SUBJECTS.items() if holds(subject)]
    return pytest.mark.parametrize("subject", names, indirect=True)


def runs(subject: Subject, oracle: rl.Oracle, problem: Problem) -> list[tuple[Problem, rl.Reconstruction]]:
    """One run, or none where noise or rounding leads to numbers that are no probabilities."""
    try:
        return [(problem, subject.run(oracle))]
    except rl.BadAnswerError:
        assert problem.values == "probabilities"
        return []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def same(first: rl.Reconstruction, second: rl.Reconstruction) -> bool:
    """Bit for bit, cost and evidence included."""
    return (
        (first.outcome, first.spent, first.evidence, first.hidden, first.method)
        == (second.outcome, second.spent, second.evidence, second.hidden, second.method)
        and first.parameters.keys() == second.parameters.keys()
        and all(np.array_equal(first.parameters[name], second.parameters[name]) for name in first.parameters)
    )


def with_ledger(subject: Subject, oracle: rl.Oracle, path: Path, budget: int | None = None) -> rl.Reconstruction:
    ledger = rl.Ledger(path)
    try:
        return subject.method(rl.Metered(oracle, ledger=ledger, budget=budget), rng=1)
    finally:
        ledger.close()


# What it does


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_its_own_class_is_recovered_and_equal_at_fresh_points(subject, seed):
    problem = subject.target(seed=seed)
    result = subject.run(problem.oracle, rng=seed)
    assert result.outcome is RECOVERED
    assert error(result, problem) <= subject.exact
    assert result.hidden == tuple(len(weight) for weight in problem.weights[:-1])
    assert result.clone.skip is None


def test_never_recovered_without_a_comparison_at_fresh_points(subject):
    result = subject.run(subject.target().oracle)
    evidence = result.evidence
    assert evidence.verification_points >= 40
    assert 0 <= evidence.verification_gap <= subject.exact
    assert 0 < evidence.disagreement_below <= 3 / 40


def test_it_counts_as_an_independent_counter_does(subject):
    counting = Counting(subject.target().oracle)
    spent = subject.method(counting, rng=1).spent
    assert (spent.value_queries, spent.gradient_queries, spent.floats) == (
        counting.value_queries,
        counting.gradient_queries,
        counting.floats,
    )
    for counted in ("value_queries", "gradient_queries", "floats"):
        assert sum(getattr(phase, counted) for phase in spent.phases.values()) == getattr(spent, counted)
    assert all(phase.queries > 0 for phase in spent.phases.values())


def test_a_meter_that_was_used_before_does_not_change_what_a_run_cost(subject):
    meter = rl.Metered(subject.target().oracle)
    meter(np.ones((7, meter.offer.dimension)), gradients=False)
    first, second = subject.method(meter, rng=1), subject.method(meter, rng=1)
    assert first.spent == second.spent
    assert meter.spent.queries == 7 + 2 * first.spent.queries


def test_nothing_is_asked_twice(subject):
    counting = Counting(subject.target().oracle)
    subject.method(counting, rng=1)
    assert counting.repeated == 0


def test_the_same_seed_gives_the_same_result_bit_for_bit(subject):
    oracle = subject.target().oracle
    once, again = subject.run(oracle), subject.run(oracle)
    assert same(once, again)
    assert same(once, subject.method(oracle, rng=np.random.default_rng(1)))


def test_without_a_seed_it_works_too(subject):
    """The paper's method misses a kink in about one run of ten (test_paper.py), but not in five runs of five."""
    assert any(subject.method(subject.target().oracle).outcome is RECOVERED for _ in range(5))


def test_it_is_a_frozen_record_whose_repr_names_it(subject):
    method = subject.method
    assert eval(repr(method), {type(method).__name__: type(method)}) == method
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, None)


def test_what_is_exported_predicts_the_same(subject, tmp_path):
    result = subject.run(subject.target().oracle)
    x = np.random.default_rng(5).standard_normal((50, len(result.parameters["layers.0.weight"][0])))
    expected = result.predict(x)
    close = {"rtol": 1e-9, "atol": 1e-9 * np.abs(expected).max()}
    np.testing.assert_allclose(result.to_torch()(torch.tensor(x)).detach().numpy(), expected, **close)
    np.testing.assert_allclose(load(result.save(tmp_path / "clone.safetensors")).predict(x), expected, **close)
    session = onnxruntime.InferenceSession(result.save(tmp_path / "clone.onnx"))
    (answers,) = session.run(None, {session.get_inputs()[0].name: x})
    np.testing.assert_allclose(answers, expected, **close)


def test_inputs_of_a_shape_are_asked_flat_and_the_clone_knows_the_shape(subject):
    problem = subject.target()
    d = problem.offer.dimension
    oracle = Offering(problem.oracle, inputs=(2, d // 2))
    result = subject.run(oracle)
    assert result.outcome is RECOVERED
    assert result.clone.inputs == (2, d // 2)
    assert error(result, problem) <= subject.exact


# What it refuses


@pytest.mark.parametrize("values", ["label", "none"])
def test_values_that_tell_nothing_are_misuse(subject, values):
    counting = Counting(Offering(subject.target().oracle, values=values))
    with pytest.raises(rl.MisuseError, match="values"):
        subject.method(counting, rng=1)
    assert counting.queries == 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_target_of_another_class_is_recovered_by_methods_that_know_it_and_never_wrong(subject, foreign, seed):
    fields = subject.target().offer
    K = 1 if isinstance(subject.method, rl.PaperTwoLayer) else fields.outputs
    values = fields.values if fields.values == "probabilities" else ("real" if K == 1 else "logits")
    problem = FOREIGN[foreign](K, seed, gradients=fields.gradients, dtype=fields.dtype, values=values)
    result = dataclasses.replace(subject, most=20_000).run(problem.oracle, rng=seed)
    assert recovered([(problem, result)], subject.exact) >= (foreign in subject.also)


def reads_a_gradient(subject: Subject) -> bool:
    """Whether the first query is a gradient at which a linear model is read: all there is, though not compared yet."""
    offer = subject.target().offer
    return isinstance(subject.method, rl.Linear | rl.Auto) and (offer.gradients, offer.values) == ("all", "logits")


@those(reads_a_gradient)
def test_one_gradient_is_a_linear_model_that_is_not_compared(subject):
    result = subject.method(rl.Metered(subject.target().oracle, budget=1), rng=1)
    assert result.outcome is rl.Outcome.BUDGET_EXHAUSTED
    assert result.evidence.verification_gap is None
    assert result.clone is not None


@those(lambda subject: not reads_a_gradient(subject))
def test_where_there_is_no_clone_using_it_is_misuse(subject):
    result = subject.method(rl.Metered(subject.target().oracle, budget=1), rng=1)
    assert result.outcome is rl.Outcome.BUDGET_EXHAUSTED
    assert result.evidence.verification_gap is None
    assert result.hidden == ()
    for use in (result.to_torch, lambda: result.predict(np.zeros((1, 12))), lambda: result.save("clone.onnx")):
        with pytest.raises(rl.MisuseError, match="there is no clone to use"):
            use()


# Answers that are wrong


def last_is(number: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(numbers: np.ndarray) -> np.ndarray:
        numbers[-1, -1] = number
        return numbers

    return change


BAD: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "NaN": last_is(np.nan),
    "infinity": last_is(np.inf),
    "one row too few": lambda numbers: numbers[1:],
    "one column too many": lambda numbers: np.concatenate([numbers, numbers[..., :1]], axis=-1),
    "flat": lambda numbers: numbers.ravel(),
}


@cache
def price(name: str) -> int:
    """How many rows an undisturbed run asks."""
    subject = SUBJECTS[name]
    return subject.run(subject.target().oracle).spent.queries


@pytest.fixture(params=[0.0, 0.3, 0.9], ids=["at once", "early", "late"])
def after(request: pytest.FixtureRequest) -> int:
    """This many rows of a run are answered well."""
    return int(request.param * price(request.node.callspec.params["subject"]))


@pytest.mark.parametrize("kind", BAD)
def test_numbers_that_are_not_finite_or_not_of_the_promised_shape_are_a_bad_answer(subject, kind, after):
    def lie(answer: rl.Answer) -> rl.Answer:
        return rl.Answer(BAD[kind](answer.values.copy()), answer.gradients)

    with pytest.raises(rl.BadAnswerError, match="values: expected"):
        subject.run(Lying(subject.target().oracle, lie, after))


@those(lambda subject: subject.target().offer.gradients != "none")
def test_gradients_that_do_not_come_are_a_bad_answer(subject):
    with pytest.raises(rl.BadAnswerError, match="gradients: the offer promises"):
        subject.run(Lying(subject.target().oracle, lambda answer: rl.Answer(answer.values)))


@pytest.mark.parametrize("random", [True, False], ids=["said", "unsaid"])
@pytest.mark.parametrize("scale", [1e-2, 1e-6, 1e-9])
def test_random_answers_are_never_called_an_exact_model(subject, scale, random):
    """What is called recovered is as close as the noise allows; noise below what float32 tells changes nothing."""
    problem = subject.target()
    answers = Offering(Noisy(problem.oracle, scale), random=random)
    below = problem.dtype == "float32" and scale < 1e-8
    assert recovered(runs(subject, answers, problem), 1e-4) >= below


@pytest.mark.parametrize("decimals", [1, 2, 3, 4, 6, 8, 10])
def test_rounded_answers_are_never_called_recovered_when_they_hide_the_model(subject, decimals):
    problem = subject.target()
    enough = subject.decimals is not None and decimals >= subject.decimals
    assert recovered(runs(subject, problem.changed(decimals=decimals).oracle, problem), 1e-3) >= enough


@pytest.mark.parametrize("seed", range(3))
def test_float32_that_is_offered_as_float64_is_noticed(subject, seed):
    problem = subject.target(seed=seed, dtype="float32")
    result = subject.run(Offering(problem.oracle, dtype="float64"), rng=seed)
    assert recovered([(problem, result)], 1e-4) >= subject.float32


@those(lambda subject: not isinstance(subject.method, rl.PaperTwoLayer))
def test_logits_that_are_offered_as_probabilities_are_noticed(subject):
    problem = subject.target(values="logits")
    with pytest.raises(rl.BadAnswerError, match="offered as probabilities"):
        subject.run(Offering(problem.oracle, values="probabilities"))


def test_probabilities_that_are_offered_as_logits_are_not_piecewise_linear(subject):
    problem = subject.target(values="probabilities")
    values = "real" if isinstance(subject.method, rl.PaperTwoLayer) else "logits"
    assert subject.run(Offering(problem.oracle, values=values)).outcome is not RECOVERED


# Runs that end early


def test_an_oracle_that_raises_is_reported_and_what_was_paid_is_kept(subject, after, path):
    problem = subject.target()
    whole = subject.run(problem.oracle)
    first = Counting(Breaking(problem.oracle, after))
    with pytest.raises(rl.OracleFailedError, match="ConnectionError: the target hung up"):
        with_ledger(subject, first, path)
    second = Counting(problem.oracle)
    assert len(rl.Ledger(path)) == first.queries <= after
    resumed = with_ledger(subject, second, path)
    assert first.queries + second.queries == whole.spent.queries
    assert resumed.outcome is whole.outcome
    assert resumed.spent == whole.spent


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_budget_too_small_is_an_outcome_and_a_larger_one_pays_for_nothing_twice(subject, share, path):
    problem = subject.target()
    total = subject.run(problem.oracle).spent.queries
    first, budget = Counting(problem.oracle), max(1, int(share * total))
    short = with_ledger(subject, first, path, budget)
    assert short.outcome is rl.Outcome.BUDGET_EXHAUSTED
    assert short.spent.queries == first.queries <= budget
    assert str(budget) in short.evidence.remark
    second = Counting(problem.oracle)
    whole = with_ledger(subject, second, path, total)
    assert whole.outcome is RECOVERED
    assert first.queries + second.queries == whole.spent.queries == total
    assert error(whole, problem) <= subject.exact
