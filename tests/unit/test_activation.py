"""Activations: their derivatives are those of the function, and names are told apart."""

import numpy as np
import pytest

import relumine as rl
from relumine.reconstruct.activation import NAMES, Activation

# Random pieces that meet with the same slope: cubic Hermite between knots with random values and slopes.
_VALUES, _SLOPES = np.random.default_rng(3).normal(size=(2, 3, 6))
_RISE = np.diff(_VALUES)
_TABLE = np.stack(
    [
        _SLOPES[:, :-1],
        3 * _RISE - 2 * _SLOPES[:, :-1] - _SLOPES[:, 1:],
        _SLOPES[:, :-1] + _SLOPES[:, 1:] - 2 * _RISE,
    ],
    axis=2,
)


@pytest.fixture(params=NAMES)
def activation(request: pytest.FixtureRequest) -> Activation:
    return Activation("tabulated", table=_TABLE) if request.param == "tabulated" else Activation(request.param)


def test_derivatives_are_those_of_the_function(activation):
    # No pre-activation is closer to a kink (−1, 0, 1, 6, a knot) than the step.
    z = np.random.default_rng(0).uniform(-7, 8, (200, 3))
    step = 1e-5
    z = z[(np.abs(z - np.round(z)) > 2 * step).all(axis=1)]
    slopes = (activation(z + step) - activation(z - step)) / (2 * step)
    np.testing.assert_allclose(activation.derivative(z), slopes, atol=1e-8)
    bends = (activation.derivative(z + step) - activation.derivative(z - step)) / (2 * step)
    np.testing.assert_allclose(activation.curvature(z), bends, atol=1e-7)


def test_large_numbers_overflow_nowhere(activation):
    z = np.array([[-1e3, 0.0, 1e3]])
    with np.errstate(over="raise", invalid="raise"):
        for numbers in (activation(z), activation.derivative(z), activation.curvature(z)):
            assert np.isfinite(numbers).all()


def test_a_table_goes_through_its_knots():
    knots = np.arange(6.0)[:, None] * np.ones(3)
    np.testing.assert_allclose(Activation("tabulated", table=_TABLE)(knots), (_VALUES - _VALUES[:, :1]).T, atol=1e-12)


def test_a_leaky_relu_names_its_slope():
    assert str(Activation("leaky_relu", 0.25)) == "leaky_relu(0.25)"
    assert str(Activation("leaky_relu", np.array([0.1, 0.2]))) == "prelu"


@pytest.mark.parametrize("fields", [{"name": "swoosh"}, {"name": "tabulated"}, {"name": "relu", "table": _TABLE}])
def test_what_is_no_activation_is_refused(fields):
    with pytest.raises(rl.MisuseError, match="activation"):
        Activation(**fields)


def test_a_result_names_its_activation():
    def clone(*hidden: int) -> rl.Network:
        return rl.Network(
            (*(np.ones((1, 1)) for _ in hidden), np.ones((1, 1))),
            (*(np.ones(1) for _ in hidden), np.ones(1)),
            (1,),
            activation=Activation("silu"),
        )

    def result(network: rl.Network | None) -> rl.Reconstruction:
        return rl.Reconstruction(network, rl.Outcome.RECOVERED, rl.Spent())

    assert result(clone(1)).activation == "silu"
    assert result(clone()).activation is None
    assert result(None).activation is None
