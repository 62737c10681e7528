"""What the paper's lemmas and formulas say, measured: where the printed text is wrong, and that ours is right."""

from math import asinh, pi, sqrt

import numpy as np
import pytest
from scipy.optimize import linprog

import relumine as rl
from problems import two_layer
from relumine.reconstruct.paper import BinarySearch, Failure, GradientLine, chebyshev_centre

DELTA, C = 0.05, 0.1


def kinks(cosine: float, count: int, seed: int = 0) -> np.ndarray:
    """2×n: where two hyperplanes with ⟨a, b⟩ = cosine are crossed by n random lines."""
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, 2, count))
    rows = np.array([[1.0, 0.0], [cosine, sqrt(1 - cosine**2)]])
    return -(rows @ u) / (rows @ v)


def share_within(epsilon: float, cosine: float, count: int = 1_000_000) -> float:
    t1, t2 = kinks(cosine, count)
    return float((np.abs(t1 - t2) <= epsilon).mean())


def papers_bound(epsilon: float, c: float) -> float:
    return 3 ** (4 / 3) * (epsilon / c) ** (2 / 3)


def tight_bound(epsilon: float, c: float) -> float:
    return epsilon / (2 * sqrt(2 * c - c**2))


# Lemma 2: kinks are not close together


def test_anti_concentration_is_linear_in_epsilon():
    """c = 0.1, ε = 1e-3: measured 1.06e-3, tight bound 1.15e-3, the paper's 0.20."""
    measured = share_within(1e-3, cosine=1 - C, count=2_000_000)
    assert 0.85 * tight_bound(1e-3, C) < measured < tight_bound(1e-3, C)
    assert tight_bound(1e-3, C) == pytest.approx(1.15e-3, rel=0.01)
    assert papers_bound(1e-3, C) == pytest.approx(0.20, rel=0.01)


@pytest.mark.parametrize("cosine", [0.0, 0.5, -0.9, 0.99])
@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
def test_both_bounds_hold(epsilon, cosine):
    measured = share_within(epsilon, cosine)
    slack = 4 * sqrt(measured / 1_000_000)
    c = 1 - abs(cosine)
    assert measured <= tight_bound(epsilon, c) + slack
    assert measured <= papers_bound(epsilon, c) + slack


def test_assumption_two_needs_the_modulus():
    """⟨a, b⟩ = −0.999 satisfies the printed ⟨a, b⟩ ≤ 1 − c, and its kinks are ten times too close for c = 0.1."""
    assert share_within(1e-3, cosine=-0.999) > 5 * tight_bound(1e-3, C)


# Theorem 2: l and ε


def share_beyond(l: float, h: int, count: int = 100_000) -> float:
    """How often one of h kinks (orthogonal rows) lies beyond ±l."""
    u, v = np.random.default_rng(1).standard_normal((2, h, count))
    return float((np.abs(u / v).max(axis=0) > l).mean())


@pytest.mark.parametrize("h", [4, 16, 32])
def test_l_equal_to_h_squared_fails_too_often_whatever_epsilon_is(h):
    assert share_beyond(h**2, h) == pytest.approx(2 / (pi * h), rel=0.15)
    corrected = BinarySearch.with_gradients(h, DELTA, C, "paper").l
    assert corrected == pytest.approx(4 * h / (pi * DELTA))
    assert share_beyond(corrected, h) < 1.1 * DELTA / 2


@pytest.mark.parametrize("h", [4, 16, 64])
def test_the_two_halves_of_delta_add_up(h):
    paper, tight = (BinarySearch.with_gradients(h, DELTA, C, bound) for bound in ("paper", "tight"))
    assert papers_bound(paper.epsilon, C) * h**2 + 2 * h / (pi * paper.l) == pytest.approx(DELTA)
    assert tight_bound(tight.epsilon, C) * h**2 / 2 + 2 * h / (pi * tight.l) == pytest.approx(DELTA)
    assert paper.epsilon == pytest.approx(C * (DELTA / 2) ** 1.5 / (9 * h**3))
    # As printed the second term is subtracted, which promises less failure than there is.
    assert papers_bound(paper.epsilon, C) * h**2 - 2 * h / (pi * paper.l) < 1e-9


# Algorithm 1a as printed


def test_the_printed_binary_search_throws_in_its_first_round():
    """``if … elif …; throw Failure`` fails although there are kinks."""

    def printed(line, left, right):
        while left.t <= right.t:
            middle = line.look((left.t + right.t) / 2)
            if right.t - left.t <= line.search.epsilon:
                return left, right
            if left.differs(middle):
                right = middle
            elif middle.differs(right):
                left = middle
            raise Failure
        raise Failure

    problem = two_layer(20, 8, paper=True)
    line = GradientLine(rl.Metered(problem.oracle), rl.PaperTwoLayer(8).search(problem.offer), np.random.default_rng(0))
    with pytest.raises(Failure):
        printed(line, line.look(-line.search.l), line.look(line.search.l))
    assert rl.PaperTwoLayer(8)(problem.oracle, rng=0).outcome is rl.Outcome.RECOVERED


# Appendix B: the linear programme and its box


def printed_programme(Z: np.ndarray, signs: np.ndarray):
    """max r subject to (z_i·y + r)·sgn_i ≥ 0, 0 ≤ y ≤ 1."""
    d = Z.shape[1]
    rows = -signs[:, None] * np.hstack([Z, np.ones((len(Z), 1))])
    return linprog(np.append(np.zeros(d), -1.0), rows, np.zeros(len(Z)), bounds=[(0, 1)] * d + [(None, None)])


def test_the_printed_programme_is_unbounded_for_an_all_positive_cell():
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((4, 10))
    v = rng.standard_normal(10)
    Z *= np.sign(Z @ v)[:, None]
    unbounded = 3
    assert printed_programme(Z, np.sign(Z @ v)).status == unbounded
    assert 0 < chebyshev_centre(Z, np.sign(Z @ v))[1] <= 1


def meets_positive_box(Z: np.ndarray, signs: np.ndarray) -> bool:
    """Whether the cell has inner points in [0, 1]^d."""
    d = Z.shape[1]
    rows = np.hstack([-signs[:, None] * Z, np.ones((len(Z), 1))])
    answer = linprog(np.append(np.zeros(d), -1.0), rows, np.zeros(len(Z)), bounds=[(0, 1)] * d + [(None, 1)])
    return answer.x[-1] > 1e-9


def test_cells_can_miss_the_positive_box_but_never_the_box_around_the_origin():
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(100):
        Z, v = rng.standard_normal((6, 6)), rng.standard_normal(6)
        missed += not meets_positive_box(Z, np.sign(Z @ v))
        assert chebyshev_centre(Z, np.sign(Z @ v))[1] > 0
    assert missed > 0.05 * 100


# Theorem 3: the step of the differences


def share_with_an_inexact_difference(search: BinarySearch, h: int, count: int = 20_000) -> float:
    """How often a point of the search's grid is within s of one of h orthogonal hyperplanes."""
    assert search.s is not None
    u, v = np.random.default_rng(2).standard_normal((2, h, count))
    places = np.round(-u / v / search.epsilon) * search.epsilon
    near = (np.abs(u + places * v) <= search.s) & (np.abs(places) <= search.l)
    return float(near.any(axis=0).mean())


@pytest.mark.parametrize("bound", ["paper", "tight"])
def test_the_corrected_step_keeps_all_differences_exact(bound):
    search = BinarySearch.with_values(4, DELTA, C, bound)
    assert share_with_an_inexact_difference(search, 4) <= DELTA / (2 - DELTA)
    assert pytest.approx(1 - DELTA) == (1 - DELTA / 2) * (1 - DELTA / (2 - DELTA))


def test_the_step_is_that_of_the_proof_and_not_that_of_the_statement():
    search = BinarySearch.with_values(4, DELTA, C, "paper")
    assert search.s == pytest.approx(DELTA * search.epsilon / (2 * (2 - DELTA) * search.l * 4))
    printed = DELTA * search.epsilon / (2 * (2 - DELTA) * search.l * search.epsilon)
    assert share_with_an_inexact_difference(BinarySearch(search.l, search.epsilon, printed), 4) > 0.9


@pytest.mark.parametrize("l", [10.0, 1000.0])
def test_the_union_over_the_grid_grows_with_asinh_l_and_not_with_l(l):
    epsilon = 1e-3
    grid = np.arange(-l, l + epsilon, epsilon)
    union = sqrt(2 / pi) * (1 / np.sqrt(1 + grid**2)).sum()
    assert union == pytest.approx(sqrt(2 / pi) * 2 * asinh(l) / epsilon, rel=0.01)
