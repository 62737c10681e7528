"""How good a clone is: figures that are known beforehand."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

import relumine as rl
from problems import network as problem
from relumine.audit.data import AuditData, gaussian_data
from relumine.audit.measures import clone_measures, reference_of
from relumine.audit.parameters import recovered_share, true_network
from relumine.audit.pictures import unit_pairs_of
from relumine.reconstruct.matching.student import StudentClone

RNG = np.random.default_rng(5)


def net(*widths: int, seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def some(dimension: int, count: int = 300, labels: np.ndarray | None = None) -> AuditData:
    inputs = RNG.standard_normal((count, dimension)).astype(np.float32)
    return AuditData(inputs, labels, (), "some.npz")


def answering(offer: rl.Offer, function) -> rl.FunctionOracle:
    return rl.FunctionOracle(lambda x, _: (function(x), None), replace(offer, gradients="none"))


def measured(predict, target, test):
    return clone_measures(predict, None, target, test)


def clone_like(predict, kind):
    """A clone with a torch form that answers the same, as students have."""

    class Module(nn.Module):
        def forward(self, x):
            return torch.from_numpy(predict(x.detach().numpy())) + 0 * x.sum()

    return type("Like", (), {"values": kind, "predict": staticmethod(predict), "to_torch": lambda self: Module()})()


# Agreement, accuracy and gap


def test_the_truth_agrees_with_itself():
    target = problem(6, 5, 3, seed=1)
    test = some(6, labels=target.predict(RNG.standard_normal((300, 6))).argmax(1))
    result = measured(target.predict, target.oracle, test)
    assert (result.agreement, result.gaussian_agreement) == (1, 1)
    assert result.worst_gap < 1e-12
    assert result.accuracy == result.target_accuracy
    assert result.transfer is None
    assert result.parameters_recovered is None


def test_agreement_is_the_share_of_equal_classes():
    test = some(2, 400)
    target = answering(rl.Offer((2,), 2, "logits"), lambda x: np.stack([x[:, 0], -x[:, 0]], 1))
    by_the_other = measured(lambda x: np.stack([x[:, 1], -x[:, 1]], 1), target, test)
    same = (np.sign(test.rows[:, 0]) == np.sign(test.rows[:, 1])).mean()
    assert by_the_other.agreement == pytest.approx(same)
    assert measured(lambda x: np.stack([-x[:, 0], x[:, 0]], 1), target, test).agreement == 0


def test_accuracy_is_held_against_labels():
    labels = np.repeat([0, 1], 50)
    test = AuditData(np.where(labels == 0, 1.0, -1.0)[:, None].astype(np.float32), labels, (), "two")
    target = answering(rl.Offer((1,), 2, "logits"), lambda x: np.hstack([x, -x]))
    wrong_for_one = measured(lambda x: np.tile([1.0, 0.0], (len(x), 1)), target, test)
    assert (wrong_for_one.target_accuracy, wrong_for_one.accuracy, wrong_for_one.agreement) == (1, 0.5, 0.5)
    assert reference_of(target, test).majority == 0.5


def test_a_constant_target_is_told_by_what_a_constant_guess_agrees_with():
    target = answering(rl.Offer((3,), 4, "logits"), lambda x: np.tile([0.0, 2, 1, 0], (len(x), 1)))
    test = some(3)
    assert reference_of(target, test).majority == 1
    number = answering(rl.Offer((3,), 1, "real"), lambda x: np.full((len(x), 1), 3.0))
    assert reference_of(number, test).majority == 1


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize(("kind", "gap"), [("probabilities", 1e-12), ("log-probabilities", 1e-12), ("label", 0)])
def test_a_clone_that_saw_less_is_held_against_what_it_saw(outputs, kind, gap):
    target = problem(6, 5, outputs, seed=2, values="logits")
    shown = replace(target, values="probabilities").predict

    def predict(x):
        probabilities = shown(x)
        if kind != "label":
            return np.log(probabilities) if kind == "log-probabilities" else probabilities
        return (probabilities > 0.5) * 1.0 if outputs == 1 else np.eye(outputs)[probabilities.argmax(1)]

    clone = clone_like(predict, kind)
    result = clone_measures(predict, clone, target.oracle, some(6))
    assert (result.agreement, result.gaussian_agreement) == (1, 1)
    assert result.worst_gap <= gap


def test_numbers_that_a_defence_left_as_real_are_what_the_target_s_are():
    target = problem(6, 5, 1, seed=3, values="probabilities")
    result = clone_measures(target.predict, clone_like(target.predict, "real"), target.oracle, some(6))
    assert result.agreement == 1
    assert result.worst_gap < 1e-12


def test_a_regression_agrees_where_it_is_close():
    test = some(2, 2000)
    target = answering(rl.Offer((2,), 1, "real"), lambda x: x[:, :1])
    assert measured(lambda x: x[:, :1] + 0.09, target, test).agreement == 1
    assert measured(lambda x: x[:, :1] + 0.12, target, test).agreement == 0
    constant = measured(lambda x: np.zeros((len(x), 1)), target, test).agreement
    assert constant < 0.15
    assert reference_of(target, test).majority == pytest.approx(constant, abs=0.03)
    assert clone_measures(lambda x: x[:, :1], None, target, test).transfer is None


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_says_how_much_variance_a_clone_explains(outputs):
    test = some(2, 2000)
    target = answering(rl.Offer((2,), outputs, "real"), lambda x: x[:, :outputs])
    assert measured(lambda x: x[:, :outputs], target, test).r2 == 1
    assert measured(lambda x: np.zeros((len(x), outputs)), target, test).r2 == pytest.approx(0, abs=0.01)
    assert measured(lambda x: x[:, :outputs] + 0.5, target, test).r2 == pytest.approx(0.75, abs=0.03)
    classifier = answering(rl.Offer((2,), 2, "logits"), lambda x: x)
    assert measured(lambda x: x, classifier, test).r2 is None


def test_predictions_that_are_no_numbers_agree_with_nothing():
    target = problem(6, 5, 3, seed=1)

    def half(x):
        values = target.predict(x)
        values[::2] = np.nan
        return values

    result = clone_measures(half, None, target.oracle, some(6))
    assert result.agreement == 0.5
    assert np.isfinite(result.worst_gap)


def test_a_target_without_values_cannot_be_judged_by():
    target = answering(rl.Offer((3,), 2, "none"), lambda x: np.zeros((len(x), 2)))
    with pytest.raises(rl.MisuseError, match="answers no values"):
        clone_measures(lambda x: x, None, target, some(3))


def test_the_target_is_asked_once_for_all_clones():
    asked = []
    target = problem(6, 5, 3, seed=1)

    def counting(x):
        asked.append(len(x))
        return target.predict(x)

    oracle, test = answering(target.offer, counting), some(6)
    for _ in range(3):
        clone_measures(target.predict, None, oracle, test)
    assert asked == [300, 1000]


# Transfer


def test_examples_that_fool_the_truth_fool_the_target():
    target = rl.TorchOracle(net(20, 16, 4), 20)
    clone = true_network(target)
    assert clone_measures(clone.predict, clone, target, some(20)).transfer == 1


def test_examples_of_a_stranger_fool_the_target_less_often():
    target = rl.TorchOracle(net(20, 16, 4), 20)
    stranger = true_network(rl.TorchOracle(net(20, 16, 4, seed=9), 20))
    result = clone_measures(stranger.predict, stranger, target, some(20, 1000))
    assert result.transfer < 0.7
    assert result.parameters_recovered < 0.01


def test_a_student_s_examples_count_too():
    target = rl.TorchOracle(net(20, 16, 4), 20, values="probabilities")
    student = StudentClone(net(20, 16, 4).float(), (20,), "probabilities")
    result = clone_measures(student.predict, student, target, some(20))
    assert result.transfer > 0.95
    assert result.agreement > 0.99
    assert result.parameters_recovered is None


def test_one_output_can_be_fooled_too():
    module = net(20, 16, 1)
    target = rl.TorchOracle(module, 20, values="probabilities")
    clone = true_network(target)
    assert clone_measures(clone.predict, clone, target, some(20)).transfer == 1


def test_a_clone_that_cannot_be_fooled_says_nothing():
    target = answering(rl.Offer((3,), 2, "logits"), lambda x: np.tile([0.0, 2.0], (len(x), 1)))
    clone = rl.Network((np.zeros((2, 3)),), (np.array([0.0, 2.0]),), (3,), values="logits")
    result = clone_measures(clone.predict, clone, target, some(3))
    assert result.agreement == 1
    assert result.transfer is None


def test_examples_stay_in_the_box():
    module, asked = net(20, 16, 4), []
    inside = rl.TorchOracle(module, 20)

    def look(x):
        asked.append(x)
        return inside(x, gradients=False).values

    target = answering(rl.Offer((20,), 4, "logits", box=(0.0, 1.0)), look)
    test = AuditData(RNG.uniform(size=(300, 20)).astype(np.float32), None, (), "in a box")
    clone = true_network(inside)
    clone_measures(clone.predict, clone, target, test)
    assert len(asked) == 3
    assert np.concatenate(asked).min() >= 0
    assert np.concatenate(asked).max() <= 1


# Parameters


def shuffled(truth: rl.Network) -> rl.Network:
    """The same function: hidden units in another order and scale."""
    weights, biases = list(truth.weights), list(truth.biases)
    for layer in range(len(weights) - 1):
        order, scale = RNG.permutation(len(weights[layer])), RNG.uniform(0.1, 10, len(weights[layer]))
        weights[layer] = (weights[layer] * scale[:, None])[order]
        biases[layer] = (biases[layer] * scale)[order]
        weights[layer + 1] = (weights[layer + 1] / scale)[:, order]
    return replace(truth, weights=tuple(weights), biases=tuple(biases))


def turned(truth: rl.Network, units: int) -> rl.Network:
    """The same function: some units of the only hidden layer turned around, the difference in skip and offset."""
    (rows, outputs), (biases, offset) = truth.weights, truth.biases
    flip = np.where(np.arange(len(rows)) < units, -1.0, 1.0)
    skip = outputs[:, :units] @ rows[:units]
    offset = offset + outputs[:, :units] @ biases[:units]
    return replace(truth, weights=(rows * flip[:, None], outputs), biases=(biases * flip, offset), skip=skip)


def truth_of(*widths: int, **options: object) -> rl.Network:
    truth = true_network(rl.TorchOracle(net(*widths), widths[0], **options))
    assert truth is not None
    return truth


@pytest.mark.parametrize("widths", [(6, 3), (6, 9, 3), (6, 9, 1), (8, 6, 5, 4, 2)])
def test_order_and_scale_do_not_matter(widths):
    truth = truth_of(*widths)
    clone = shuffled(truth)
    x = RNG.standard_normal((10, widths[0]))
    assert np.allclose(clone.predict(x), truth.predict(x))
    assert recovered_share(clone, truth) == 1


def test_orientation_does_not_matter():
    truth = truth_of(6, 9, 3)
    clone = shuffled(turned(truth, 4))
    x = RNG.standard_normal((10, 6))
    assert np.allclose(clone.predict(x), truth.predict(x))
    assert recovered_share(clone, truth) == 1


def test_what_a_softmax_hides_does_not_matter():
    truth = truth_of(6, 9, 3, values="probabilities")
    (rows, outputs), (biases, offset) = truth.weights, truth.biases
    clone = replace(truth, weights=(rows, outputs + RNG.standard_normal((1, 9))), biases=(biases, offset + 3))
    assert not np.allclose(clone.logits(np.ones((1, 6))), truth.logits(np.ones((1, 6))))
    assert recovered_share(clone, truth) == 1
    assert recovered_share(replace(clone, values="logits"), replace(truth, values="logits")) < 0.8


@pytest.mark.parametrize("seed", range(30))
def test_a_wrong_unit_is_missed_and_the_others_are_not(seed):
    truth = truth_of(6, 9, 3)
    rows = truth.weights[0].copy()
    rows[2] = np.random.default_rng(seed).standard_normal(6)
    clone = replace(truth, weights=(rows, truth.weights[1]))
    # 7 numbers of the unit, and its 3 outputs because its length is another, of 6·9 + 9 + 9·3 + 3.
    assert recovered_share(shuffled(clone), truth) == pytest.approx(1 - 10 / 93)


def test_missing_and_additional_units():
    truth = truth_of(6, 9, 3)
    fewer = replace(
        truth, weights=(truth.weights[0][:-2], truth.weights[1][:, :-2]), biases=(truth.biases[0][:-2], truth.biases[1])
    )
    assert recovered_share(fewer, truth) == pytest.approx(1 - 20 / 93)
    more = replace(
        truth,
        weights=(
            np.vstack([RNG.standard_normal((2, 6)), truth.weights[0]]),
            np.hstack([np.ones((3, 2)), truth.weights[1]]),
        ),
        biases=(np.append([1.0, 2.0], truth.biases[0]), truth.biases[1]),
    )
    assert recovered_share(more, truth) == 1


def test_another_number_of_layers_recovers_nothing():
    assert recovered_share(truth_of(6, 3), truth_of(6, 9, 3)) == 0


def test_what_a_method_recovers_is_counted_as_recovered():
    target = rl.TorchOracle(net(20, 16, 4), 20, values="probabilities")
    result = rl.TwoLayer()(target, rng=0)
    assert clone_measures(result.predict, result.clone, target, gaussian_data(target.offer)).parameters_recovered == 1


def test_networks_are_read_off_their_modules():
    target = rl.TorchOracle(net(6, 9, 3, bias=False), 6, values="probabilities")
    truth = true_network(target)
    x = RNG.standard_normal((5, 6))
    assert np.allclose(truth.predict(x), softmax(target.module(torch.from_numpy(x)).detach().numpy(), axis=1))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)),
        nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 3)),
        nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        nn.Linear(6, 3).requires_grad_(False),
    ],
    ids=["tanh", "norm", "conv", "linear"],
)
def test_other_modules_are_not_mistaken_for_networks(module):
    found = true_network(rl.TorchOracle(module, 6))
    assert (found is not None) == isinstance(module, nn.Linear)


def test_the_truth_of_others_is_unknown():
    assert true_network(problem(6, 5, 3).oracle) is None
    assert true_network(rl.Metered(rl.TorchOracle(net(6, 9, 3), 6))) is None


def test_pictures_pair_units_as_the_measures_do():
    """Two true units close to one recovered one: by the best match both would claim it."""
    module = net(6, 3, 2)
    with torch.no_grad():
        module[1].weight[1] = module[1].weight[0] + 0.1 * module[1].weight[2]
        module[1].bias.zero_()
    target = rl.TorchOracle(module, 6)
    truth = true_network(target)
    assert truth is not None
    rows = truth.weights[0].copy()
    rows[1] = rows[0] - rows[2]  # badly recovered: the true unit 1 is closer to the recovered unit 0
    clone = replace(truth, weights=(rows, truth.weights[1]))
    pairs = unit_pairs_of(clone, target)
    assert len({pair.recovered for pair in pairs}) == 3
    assert sum(pair.distance < 1e-9 for pair in pairs) == 2


def test_units_that_were_not_recovered_have_no_picture():
    target = rl.TorchOracle(net(6, 9, 3), 6)
    truth = true_network(target)
    assert truth is not None
    fewer = replace(
        truth, weights=(truth.weights[0][:-2], truth.weights[1][:, :-2]), biases=(truth.biases[0][:-2], truth.biases[1])
    )
    assert [pair.distance for pair in unit_pairs_of(fewer, target)] == pytest.approx([0] * 7)
