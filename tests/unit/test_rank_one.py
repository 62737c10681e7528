"""The rank-one elements of a space are found, whatever mixture of them the basis is."""

import numpy as np
import pytest

from relumine.reconstruct.tensor.rank_one import RankOneTerms, rank_one_terms


def mixed(terms: RankOneTerms, noise: float, rng: np.random.Generator) -> np.ndarray:
    """An orthonormal basis of what the terms span."""
    N, K, h = terms.left.shape[1], terms.right.shape[1], len(terms)
    products = np.einsum("sn,sk->nks", terms.left, terms.right).reshape(N * K, h)
    basis = products @ rng.standard_normal((h, h)) + noise * rng.standard_normal((N * K, h))
    return np.linalg.qr(basis)[0].reshape(N, K, h)


def of_length_one(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(("N", "K", "h"), [(12, 10, 64), (26, 3, 32), (34, 2, 32), (2, 34, 32), (8, 10, 1), (5, 1, 1)])
@pytest.mark.parametrize("noise", [0.0, 1e-7])
@pytest.mark.parametrize("seed", [0, 1])
def test_all_terms_are_found_and_no_others(N, K, h, noise, seed):
    rng = np.random.default_rng(seed)
    terms = RankOneTerms(of_length_one(rng.uniform(size=(h, N))), of_length_one(rng.standard_normal((h, K))))
    found = rank_one_terms(mixed(terms, noise, rng), 1e-12 + (1e3 * noise) ** 2, rng)
    assert len(found) == h
    assert found.likeness(terms).max(axis=0).min() > 1 - max(1e-12, 1e3 * noise)


def test_a_space_without_rank_one_elements_has_none():
    rng = np.random.default_rng(0)
    space = np.linalg.qr(rng.standard_normal((40, 8)))[0].reshape(8, 5, 8)
    assert len(rank_one_terms(space, 1e-12, rng)) == 0
