"""One list of defended oracles, one contract: what they offer is true, and they show no more than they say."""

import itertools
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

import relumine as rl
from problems import two_layer
from relumine import defend

D, K = 6, 3
TARGETS: dict[str, Callable[[], rl.Oracle]] = {
    "logits": lambda: two_layer(D, 9, K).oracle,
    "float32": lambda: two_layer(D, 9, K, dtype="float32").oracle,
    "probabilities": lambda: two_layer(D, 9, K, values="probabilities").oracle,
    "one-output": lambda: two_layer(D, 9, 1, values="logits").oracle,
    "one-probability": lambda: two_layer(D, 9, 1, values="probabilities").oracle,
    "top": lambda: two_layer(D, 9, K, gradients="top").oracle,
    "values-only": lambda: two_layer(D, 9, K, gradients="none").oracle,
}
SPECS = [
    *(kind.example for kind in defend.DEFENCES),
    "round:0",
    "round:2,values",
    "round:2,gradients",
    "noise:0.5",
    "noise:0.5,multiplicative",
    "noise:0.5,consistent",
    "noise:0.5,consistent,multiplicative",
    "noise:0.5,values",
    "noise:0.5,consistent,gradients",
    "topk:2",
    "heatmap:4,signed",
    "label:kept",
    "smoothgrad:3,0.5,consistent",
    "reverse-sigmoid:0.5,1",
    "round:4+top",
    "noise:0.1+top",
    "noise:0.1,consistent+topk:2+round:3",
    "smoothgrad:3,0.2+top+sign",
    "budget:500+label",
]


def possible() -> list[tuple[str, str]]:
    """Every defence in front of every target that it is for; each has some."""
    pairs = []
    for spec, (name, target) in itertools.product(SPECS, TARGETS.items()):
        try:
            defend.parse(spec)(target())
        except rl.MisuseError:
            continue
        pairs.append((spec, name))
    return pairs


PAIRS = possible()


@pytest.fixture(params=PAIRS, ids=["-".join(pair) for pair in PAIRS])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def defended(pair: tuple[str, str], rng: int = 0) -> rl.Oracle:
    spec, target = pair
    return defend.parse(spec)(TARGETS[target](), rng=rng)


def inputs(n: int = 9, seed: int = 3) -> np.ndarray:
    """Inside the box of the example of refusal."""
    return np.random.default_rng(seed).uniform(0, 1, (n, D))


def asked(oracle: rl.Oracle, x: np.ndarray) -> rl.Answer:
    return oracle(x, gradients=oracle.offer.gradients != "none")


def same(first: rl.Answer, second: rl.Answer, tolerance: float = 0) -> bool:
    maps = first.gradients is None or np.abs(first.gradients - second.jacobians).max(initial=0) <= tolerance
    return bool(np.abs(first.values - second.values).max(initial=0) <= tolerance and maps)


def test_a_defence_is_for_every_target_that_has_what_it_changes() -> None:
    refused = {target: {spec for spec in SPECS if (spec, target) not in PAIRS} for target in TARGETS}
    of_probabilities = {spec for spec in SPECS if spec.startswith(("high-confidence", "reverse-sigmoid"))}
    smoothed = {spec for spec in SPECS if spec.startswith("smoothgrad")}
    words = ("top", "sign", "magnitude", "heatmap", "maxnorm", "gradients")
    of_gradients = {spec for spec in SPECS if any(word in spec for word in words)}
    assert refused.pop("probabilities") == refused.pop("one-probability") == set()
    assert refused.pop("top") == smoothed | of_probabilities
    assert refused.pop("values-only") == smoothed | of_probabilities | of_gradients
    assert all(specs == of_probabilities for specs in refused.values())


def test_shapes_are_as_offered(pair: tuple[str, str]) -> None:
    oracle = defended(pair)
    assert isinstance(oracle, rl.Oracle)
    for n in (0, 1, 7):
        check_shapes(oracle, n)


def check_shapes(oracle: rl.Oracle, n: int) -> None:
    offer, answer = oracle.offer, asked(oracle, inputs(n))
    assert answer.values.shape == (n, offer.outputs)
    assert answer.values.dtype == np.float64
    if offer.gradients == "none":
        with pytest.raises(rl.MisuseError, match="offers none"):
            oracle(inputs(n), gradients=True)
    else:
        assert answer.jacobians.shape == (n, offer.gradient_rows, offer.dimension)
        assert answer.jacobians.dtype == np.float64
    assert oracle(inputs(n), gradients=False).gradients is None


def test_no_more_is_offered_than_before(pair: tuple[str, str]) -> None:
    before, after = TARGETS[pair[1]]().offer, defended(pair).offer
    kinds = ["none", "label", "real", "probabilities", "logits"]
    assert kinds.index(after.values) <= kinds.index(before.values)
    assert after.gradient_rows <= before.gradient_rows
    assert (after.inputs, after.outputs, after.dtype) == (before.inputs, before.outputs, before.dtype)


def test_a_meter_accepts_the_answers(pair: tuple[str, str]) -> None:
    meter = rl.Metered(defended(pair))
    assert len(asked(meter, inputs())) == 9
    assert meter.spent.queries == 9


def test_random_is_told_and_only_then(pair: tuple[str, str]) -> None:
    oracle = defended(pair)
    assert same(asked(oracle, inputs()), asked(oracle, inputs())) is not oracle.offer.random


def test_the_same_source_gives_the_same_answers(pair: tuple[str, str]) -> None:
    assert same(asked(defended(pair, 5), inputs()), asked(defended(pair, 5), inputs()))


def test_another_source_gives_other_noise(pair: tuple[str, str]) -> None:
    noisy = "noise" in pair[0] or "smoothgrad" in pair[0]
    first, second = asked(defended(pair, 5), inputs(200)), asked(defended(pair, 6), inputs(200))
    assert same(first, second) is not noisy


def test_answers_do_not_depend_on_the_batch(pair: tuple[str, str]) -> None:
    oracle, again = defended(pair), defended(pair)
    together = asked(oracle, inputs())
    # Fresh noise is drawn in the order of the rows, so even then it is the same.
    alone = [asked(again, row[None]) for row in inputs()]
    maps = None if together.gradients is None else np.concatenate([answer.jacobians for answer in alone])
    # Rounding in the target's own sums depends on the batch, and may fall to either side of a rounding here.
    steps = {"round:0": 1.0, "round:2": 1e-2, "round:6": 1e-6, "round:3": 1e-3, "round:4": 1e-4, "heatmap": 0.15}
    step = max((size for name, size in steps.items() if name in pair[0]), default=0)
    tolerance = step + (1e-5 if oracle.offer.dtype == "float32" else 1e-12)
    assert same(together, rl.Answer(np.concatenate([answer.values for answer in alone]), maps), tolerance)


def test_values_are_the_same_with_and_without_gradients(pair: tuple[str, str]) -> None:
    oracle = defended(pair)
    if not oracle.offer.random:
        answer = asked(oracle, inputs())
        assert same(rl.Answer(answer.values), oracle(inputs(), gradients=False))


def test_nothing_is_mutated(pair: tuple[str, str]) -> None:
    oracle, x = defended(pair), inputs()
    x.setflags(write=False)
    first = asked(oracle, x)
    kept = first.values.copy()
    first.values[:] = 77
    if not oracle.offer.random:
        assert (asked(oracle, x).values == kept).all()


def test_wrong_inputs_are_refused(pair: tuple[str, str]) -> None:
    oracle = defended(pair)
    for wrong in (np.full((2, D), np.nan), np.zeros(D), np.zeros((2, D + 1)), [["a"] * D]):
        with pytest.raises(rl.MisuseError, match="inputs: expected"):
            oracle(wrong, gradients=False)


def test_each_is_a_frozen_record_that_says_what_it_changes(pair: tuple[str, str]) -> None:
    oracle, chain = defended(pair), defend.parse(pair[0])
    assert " ".join(defend.changes_of(oracle)) == chain.changes
    assert chain.changes.endswith(".")
    assert "{" not in chain.changes
    with pytest.raises(FrozenInstanceError):
        oracle.oracle = None


def test_what_is_written_is_what_was_read(pair: tuple[str, str]) -> None:
    chain = defend.parse(pair[0])
    assert defend.parse(str(chain)) == chain
