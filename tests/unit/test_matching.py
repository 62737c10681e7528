"""GradientMatching: a student trained on what the oracle answered."""

import io
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

import relumine as rl
from problems import two_layer
from relumine import explain
from relumine.console import FittingBar
from relumine.reconstruct.matching.logits import Queried, in_logits_if_known
from relumine.reconstruct.matching.loss import Matching
from relumine.reconstruct.matching.sources import Medoids

FITTED = rl.Outcome.FITTED


def student(inputs: int = 12, outputs: int = 3, hidden: int = 24):
    def make(seed: int) -> torch.nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return torch.nn.Sequential(
                torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs)
            )

    return make


class Fragile(torch.nn.Sequential):
    """No number comes out once a weight is large."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        broken = max(float(parameter.detach().abs().max()) for parameter in self.parameters()) > 2
        return super().forward(inputs) * (torch.nan if broken else 1.0)


def agreement(result: rl.Reconstruction, problem, n: int = 2000) -> float:
    x = np.random.default_rng(99).standard_normal((n, problem.A.shape[1]))
    return float((result.predict(x).argmax(1) == problem.predict(x).argmax(1)).mean())


def test_gradients_teach_more_than_the_same_number_of_values():
    problem = two_layer(12, 9, 3, seed=0)
    fast = {"steps": 600, "learning_rate": 5e-3}
    joint = rl.GradientMatching(student(), 30, **fast)(problem.oracle, rng=0)
    values = rl.GradientMatching(student(), 30, loss="membership", **fast)(problem.oracle, rng=0)
    assert joint.outcome is FITTED
    assert joint.spent.gradient_queries == 30
    assert values.spent.value_queries == 30
    assert agreement(joint, problem) > max(0.8, agreement(values, problem) + 0.03)


@pytest.mark.parametrize("gradients", ["all", "top"])
@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_every_kind_of_answer_can_be_matched(gradients, values):
    problem = two_layer(12, 9, 3, seed=1, gradients=gradients, values=values)
    result = rl.GradientMatching(student(), 60, steps=300)(problem.oracle, rng=0)
    assert agreement(result, problem) > 0.75
    if values == "probabilities":
        x = np.random.default_rng(0).standard_normal((5, 12))
        assert np.allclose(result.predict(x).sum(axis=1), 1, atol=1e-5)


def test_gradients_of_saturated_probabilities_do_not_lead_away_from_what_values_tell():
    joint, values = [], []
    for seed in range(3):
        problem = two_layer(12, 9, 3, seed=seed, values="probabilities")
        steep = problem.changed(W=10 * problem.W, c=10 * problem.c)
        joint.append(agreement(rl.GradientMatching(student(), 60, steps=400)(steep.oracle, rng=seed), steep))
        alone = rl.GradientMatching(student(), 60, steps=400, loss="membership")
        values.append(agreement(alone(steep.oracle, rng=seed), steep))
    assert np.mean(joint) > np.mean(values) + 0.02


@pytest.mark.parametrize("loss", ["joint", "membership"])
def test_probabilities_teach_as_much_as_the_logits_behind_them(loss):
    problem = two_layer(12, 9, 3, seed=0, values="probabilities")
    steep = problem.changed(W=10 * problem.W, c=10 * problem.c)
    method = rl.GradientMatching(student(), 60, steps=400, loss=loss)
    found, logits = method(steep.oracle, rng=0), method(rl.LogitLink(steep.oracle), rng=0)
    x = np.random.default_rng(0).standard_normal((500, 12))
    wanted = np.exp(logits.predict(x))
    assert np.allclose(found.predict(x), wanted / wanted.sum(axis=1, keepdims=True), atol=1e-3)
    assert agreement(found, steep) > 0.8


@pytest.mark.parametrize("classes", ["all", "top"])
def test_a_float32_target_that_is_very_sure_has_its_digits(classes):
    sure = student()(7)
    with torch.no_grad():
        sure[2].weight *= 60
    oracle = explain.ExplainedOracle(sure, explain.Gradient(), (12,), classes=classes, of="probabilities")
    x = np.random.default_rng(0).standard_normal((200, 12))
    answer = oracle(x, gradients=True)
    assert (answer.values.max(axis=1) == 1).any()
    found = in_logits_if_known(oracle.offer, x, answer)
    assert found is not None
    wanted = explain.ExplainedOracle(sure, explain.Gradient(), (12,))(found.inputs, gradients=True).jacobians
    explained = np.eye(3) - 1 / 3 if found.explained is None else found.explained
    off = np.linalg.norm(found.answer.jacobians - explained @ wanted, axis=2)
    assert off.max() < 1e-3 * np.linalg.norm(wanted, axis=2).max()


@pytest.mark.parametrize("gradients", ["top", 1])
def test_the_gradient_of_one_probability_is_that_of_its_odds(gradients):
    problem = two_layer(12, 9, 4, seed=0, values="probabilities", gradients=gradients)
    logits = problem.changed(values="logits", gradients="all")
    x = np.random.default_rng(0).standard_normal((50, 12))
    found = in_logits_if_known(problem.offer, x, problem.oracle(x, gradients=True))
    assert found is not None
    wanted = logits.oracle(x, gradients=True).jacobians
    assert np.allclose(found.answer.jacobians, found.explained @ wanted, rtol=1e-6, atol=1e-9)
    assert np.allclose(found.explained.sum(axis=2), 0)
    assert np.abs(found.explained).max(axis=2).min() == 1


class _Changed:
    """An oracle whose probabilities, or their gradients, are changed."""

    def __init__(self, oracle: rl.Oracle, change) -> None:
        self.offer, self._oracle, self._change = oracle.offer, oracle, change

    def __call__(self, inputs, *, gradients: bool) -> rl.Answer:
        return self._change(self._oracle(inputs, gradients=gradients))


def _rounded(answer: rl.Answer) -> rl.Answer:
    return rl.Answer(answer.values.round(3), answer.gradients.round(3))


def _noisy(answer: rl.Answer) -> rl.Answer:
    noise = 0.01 * np.random.default_rng(0).standard_normal(answer.gradients.shape)
    return rl.Answer(answer.values, answer.gradients + noise)


def _saturated(answer: rl.Answer) -> rl.Answer:
    sure = np.where(answer.values < 0.05, 0.0, answer.values)
    return rl.Answer(sure / sure.sum(axis=1, keepdims=True), answer.gradients)


@pytest.mark.parametrize("change", [_rounded, _noisy, _saturated])
def test_probabilities_whose_digits_are_lost_are_matched_as_they_are(change):
    problem = two_layer(12, 9, 3, seed=1, values="probabilities")
    oracle = _Changed(problem.oracle, change)
    x = np.random.default_rng(0).standard_normal((60, 12))
    assert in_logits_if_known(problem.offer, x, problem.oracle(x, gradients=True)) is not None
    assert in_logits_if_known(oracle.offer, x, oracle(x, gradients=True)) is None
    result = rl.GradientMatching(student(), 60, steps=300)(oracle, rng=0)
    assert agreement(result, problem) > 0.75
    assert np.allclose(result.predict(x).sum(axis=1), 1, atol=1e-5)


def test_a_regressor_is_matched_by_squared_error():
    problem = two_layer(12, 9, 1, seed=2)
    result = rl.GradientMatching(student(outputs=1), 60, steps=600, learning_rate=5e-3)(problem.oracle, rng=0)
    x = np.random.default_rng(0).standard_normal((500, 12))
    truth = problem.predict(x)
    assert np.square(result.predict(x) - truth).mean() < 0.2 * truth.var()


@pytest.mark.parametrize("shown", [explain.SmoothGrad(sigma=0.5), explain.InputTimesGradient()], ids=repr)
def test_an_explanation_is_matched_by_the_same_explanation(shown):
    oracle = explain.ExplainedOracle(student()(7), shown, (12,), rng=0)
    losses = []

    def watch(fitting) -> None:
        losses.append(fitting.loss)

    method = rl.GradientMatching(student(), 40, steps=400, learning_rate=5e-3, explanation=shown, watch=watch)
    assert method(oracle, rng=0).outcome is FITTED
    assert np.mean(losses[-5:]) < 0.6 * losses[0]


def test_smoothgrad_is_compared_by_its_mean_without_the_students_own_noise():
    """Of a student that is far from its target and noisy: the loss is the square of the mean error."""
    shown, target, other = explain.SmoothGrad(sigma=2.0, samples=3), student()(7), student()(8)
    oracle = explain.ExplainedOracle(target, shown, (12,), rng=0)
    x = np.random.default_rng(0).standard_normal((5, 12))
    answer = oracle(x, gradients=True)
    method = rl.GradientMatching(target, len(x), explanation=shown, loss="gradient")
    task = Matching(method, Queried(oracle.offer, x, answer), torch.zeros(()))
    many = explain.SmoothGrad(sigma=2.0, samples=100_000).maps(other, task.inputs, rng=1).maps.numpy()
    wanted = np.square(many.reshape(answer.gradients.shape) - answer.gradients).sum() / 5 / task.scale
    rng = np.random.default_rng(2)
    found = [task.exact(other, torch.arange(5), rng).item() for _ in range(3000)]
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - wanted) < 4 * error
    assert error < 0.02 * wanted


def test_batch_norms_do_not_learn_from_smoothgrads_noise():
    def normed(seed: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(12), *student()(seed))

    shown = explain.SmoothGrad(sigma=20.0)
    x = 50 + 5 * np.random.default_rng(0).standard_normal((300, 12))
    oracle = explain.ExplainedOracle(student()(7), shown, (12,), rng=0)
    result = rl.GradientMatching(normed, 300, source=x, steps=200, explanation=shown)(oracle, rng=0)
    assert np.abs(result.clone.parameters["0.running_var"] ** 0.5 - 5).max() < 1
    assert np.abs(result.clone.parameters["0.running_mean"] - 50).max() < 2


def test_the_same_seed_gives_the_same_student():
    problem = two_layer(12, 9, 3, seed=0)
    method = rl.GradientMatching(student(), 20, steps=50)
    x = np.random.default_rng(0).standard_normal((10, 12))
    once, again = method(problem.oracle, rng=5), method(problem.oracle, rng=5)
    assert np.array_equal(once.predict(x), again.predict(x))
    assert not np.array_equal(once.predict(x), method(problem.oracle, rng=6).predict(x))


@pytest.mark.parametrize("optimiser", ["adam", "muon"])
def test_an_interrupted_fitting_goes_on_to_the_same_student(tmp_path, optimiser):
    problem = two_layer(12, 9, 3, seed=0)
    x = np.random.default_rng(0).standard_normal((10, 12))

    def stop(fitting) -> None:
        if fitting.step >= 50:
            raise KeyboardInterrupt

    whole = rl.GradientMatching(student(), 60, steps=100, optimiser=optimiser)(problem.oracle, rng=0)
    kept = {"steps": 100, "optimiser": optimiser, "checkpoint": tmp_path / "fit"}
    with pytest.raises(KeyboardInterrupt):
        rl.GradientMatching(student(), 60, watch=stop, **kept)(problem.oracle, rng=0)
    assert list(tmp_path.iterdir())
    resumed = rl.GradientMatching(student(), 60, **kept)(problem.oracle, rng=0)
    assert np.array_equal(whole.predict(x), resumed.predict(x))
    with pytest.raises(rl.MisuseError, match="another fitting"):
        rl.GradientMatching(student(), 61, **kept)(problem.oracle, rng=0)


def test_a_fitting_that_diverges_begins_anew_and_slower(tmp_path):
    problem = two_layer(12, 9, 3, seed=0)
    fragile = {"learning_rate": 2.0, "steps": 400, "batch": 8}
    steps: list[int] = []

    def stop(fitting) -> None:
        steps.append(fitting.step)
        if len(steps) == 12:
            raise KeyboardInterrupt

    def make(seed: int) -> torch.nn.Module:
        return Fragile(*student()(seed))

    result = rl.GradientMatching(make, 60, **fragile)(problem.oracle, rng=0)
    assert agreement(result, problem) > 0.8
    with pytest.raises(KeyboardInterrupt):
        rl.GradientMatching(make, 60, watch=stop, checkpoint=tmp_path / "fit", **fragile)(problem.oracle, rng=0)
    resumed = rl.GradientMatching(make, 60, checkpoint=tmp_path / "fit", **fragile)(problem.oracle, rng=0)
    x = np.random.default_rng(0).standard_normal((10, 12))
    assert np.array_equal(result.predict(x), resumed.predict(x))
    with pytest.raises(rl.MisuseError, match=r"diverged at step \d+, at a rate of 9.8e\+02 too"):
        rl.GradientMatching(make, 60, **fragile | {"learning_rate": 1e6})(problem.oracle, rng=0)


@pytest.mark.parametrize("loss", ["joint", "membership"])
def test_batch_norms_learn_and_then_stand_still(loss):
    """Inputs far from zero: a norm that kept its first statistics would show the student next to nothing."""
    problem = two_layer(12, 9, 3, seed=0)

    def normed(seed: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(12), *student()(seed))

    x = 50 + 5 * np.random.default_rng(0).standard_normal((600, 12))
    moved = problem.changed(b=problem.b - 50 * problem.A.sum(axis=1))
    result = rl.GradientMatching(normed, 300, source=x[:300], loss=loss, steps=600)(moved.oracle, rng=0)
    assert (result.predict(x[300:]).argmax(1) == moved.predict(x[300:]).argmax(1)).mean() > 0.9
    assert np.allclose(result.predict(x[300:301]), result.predict(x[300:])[:1], atol=1e-3)
    assert np.abs(result.clone.parameters["0.running_mean"] - 50).max() < 5


def test_held_out_answers_judge_the_student():
    problem = two_layer(12, 9, 3, seed=0)
    judged = rl.GradientMatching(student(), 100, steps=60)(problem.oracle, rng=0)
    assert judged.evidence.verification_points == 10
    assert judged.evidence.verification_gap > 0
    few = rl.GradientMatching(student(), 10, steps=60)(problem.oracle, rng=0)
    assert few.evidence.verification_points == 0


@pytest.mark.parametrize("held_out", [100, 300])
def test_a_student_that_is_the_target_has_no_gap_on_however_many_held_out_answers(held_out):
    problem = two_layer(12, 9, 3, seed=0)
    target = student(hidden=9)(0)
    with torch.no_grad():
        target[0].weight.copy_(torch.from_numpy(problem.A))
        target[0].bias.copy_(torch.from_numpy(problem.b))
        target[2].weight.copy_(torch.from_numpy(problem.W))
        target[2].bias.copy_(torch.from_numpy(problem.c))
    still = {"steps": 1, "learning_rate": 1e-12}
    same = rl.GradientMatching(target, 10 * held_out, **still)(problem.oracle, rng=0)
    other = rl.GradientMatching(student(hidden=9), 10 * held_out, **still)(problem.oracle, rng=0)
    assert same.evidence.verification_points == held_out
    assert same.evidence.verification_gap < 1e-6
    assert other.evidence.verification_gap > 0.1


def test_medoids_cover_a_pool_better_than_chance():
    rng = np.random.default_rng(0)
    pool = np.concatenate([rng.normal(centre, 0.1, (200 if i == 0 else 5, 12)) for i, centre in enumerate(range(8))])
    offer = rl.Offer(inputs=(12,), outputs=3)

    def farthest(chosen):
        return np.linalg.norm(pool[:, None] - chosen[None], axis=2).min(axis=1).max()

    spread = Medoids(pool).pick(offer, 8, np.random.default_rng(1))
    chance = np.median([farthest(pool[rng.choice(len(pool), 8, replace=False)]) for _ in range(20)])
    assert farthest(spread) < 0.5 * chance
    assert len(np.unique(spread, axis=0)) == 8


def test_medoids_are_different_rows_even_of_a_pool_that_repeats_itself():
    pool = np.repeat(np.arange(6.0).reshape(3, 2), 4, axis=0)
    pool[:, 0] += np.arange(12) * 1e-9
    offer = rl.Offer(inputs=(2,), outputs=3)
    with warnings.catch_warnings(action="ignore"):  # scikit-learn finds fewer clusters than it was asked for
        chosen = Medoids(pool).pick(offer, 12, np.random.default_rng(0))
    assert len(np.unique(chosen, axis=0)) == 12


def test_magnitudes_teach_more_than_values_alone():
    target = student()(7)
    oracle = explain.ExplainedOracle(target, explain.AbsoluteGradient(), (12,))
    x = np.random.default_rng(99).standard_normal((2000, 12))
    gaps = []
    for loss in ("joint", "membership"):
        method = rl.GradientMatching(student(), 40, loss=loss, explanation=explain.AbsoluteGradient(), steps=600)
        gap = method(oracle, rng=0).predict(x) - oracle(x, gradients=False).values
        gaps.append(np.square(gap).mean())
    assert gaps[0] < 0.7 * gaps[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": 0}, "queries"),
        ({"source": np.zeros((1, 12))}, "pool of 1"),
        ({"source": np.zeros((50, 11))}, "shape"),
        ({"source": np.full((50, 12), np.nan)}, "finite"),
        ({"source": "nowhere"}, "source"),
        ({"student": student(outputs=4)}, "4"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"optimiser": "sgd"}, "optimiser"),
    ],
)
def test_misuse_is_told_before_anything_is_asked(change, message):
    counted = rl.Metered(two_layer(12, 9, 3, seed=0).oracle)
    with pytest.raises(rl.MisuseError, match=message):
        rl.GradientMatching(**{"student": student(), "queries": 20, "steps": 5, **change})(counted, rng=0)
    assert counted.spent.queries == 0


def test_a_bar_shows_how_far_the_fitting_is():
    text = io.StringIO()
    problem = two_layer(12, 9, 3, seed=0)
    with FittingBar(Console(file=text, force_terminal=True, width=100)) as bar:
        rl.GradientMatching(student(), 60, steps=40, watch=bar)(problem.oracle, rng=0)
    assert "student: loss" in text.getvalue()
    assert "held out" in text.getvalue()
