"""The dense layers on known features: a linear one, or one hidden layer, by the tensor of Jacobians.

In the row space of all answers (``features.py``) the hidden layer is one with few inputs, whose units the tensor of
``relumine.reconstruct.tensor`` shows with a proof for each. Its patterns then give all rows, feature by feature, by
linear least squares over all answers.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.features import Pulled, RowSpace
from relumine.reconstruct.tensor.decomposition import Tensor, terms_of

# Up to so many points all patterns are tried, 2^12 of them; beyond, they are found by eigenvectors.
_ENUMERATED = 12
# By how many errors of a number in it a piece may change where nothing switched: two least squares lie between.
_LOST = 100.0
# Relative: directions alike up to this are the same, and a linear part below this is none.
_NOTHING = 1e-4
# Where nothing switches, what follows differs by rounding only; a hidden layer makes a difference of about one.
_STRAIGHT = 1e-2
# A feature was on so often, with each unit as at the first point and not, if its weights are well known.
_BOTH = 2
# An image that was made to show pairs of features and units is asked if it shows this part of all.
_MANY = 2e-3
# Signs of a unit that must be as its pattern says, beyond those by chance: weights not shown may still spoil some.
_AGREE = 0.5
# An answer contradicts a linear layer if its residual is this many times the median one. One of 60 that was on the
# wrong side left 100 times the median.
_CONTRADICTS = 30.0
# What is left of a linear part that is none.
_LEFT = 1e-3
# The ridge of normal equations, of their trace, and turns of refinement.
_RIDGE, _REFINED, _TINY = 1e-13, 4, 1e-300
# An answer is explained where less than this part of it is left; units not yet known leave more.
_EXPLAINED = 1e-3


@dataclass(frozen=True, eq=False)
class Dense:
    """x ↦ outputs·relu(rows·[φ, 1]) + linear·[φ, 1]: ``outputs`` K×h, ``rows`` h×(F+1), ``linear`` K×(F+1).

    shown: h×(F+1), whether a unit was on together with a feature, so that its weight is known; 1×(F+1) without units
    """

    outputs: Array
    rows: Array
    linear: Array
    shown: NDArray[np.bool_]

    @property
    def plain(self) -> bool:
        """Whether nothing goes past the hidden units."""
        hidden = self.outputs @ self.rows
        return float(np.abs(self.linear[:, :-1]).max()) <= _NOTHING * max(float(np.abs(hidden).max()), 1e-300)

    def telling(self, features: Array, count: int) -> list[int]:
        """Of n images the few that switch units on together with features beside which they were never seen.

        The second half of the images is made for that, and is worth a query only if it shows many.
        """
        on = np.hstack([features > 0, np.ones((len(features), 1), dtype=bool)])
        units = np.hstack([features, np.ones((len(features), 1))]) @ self.rows.T > 0
        units = units if len(self.rows) else np.ones((len(features), 1), dtype=bool)
        missing, chosen = ~self.shown, []
        for _ in range(count):
            gains = ((units @ missing) * on).sum(axis=1)
            gains[len(gains) // 2 :] *= gains[len(gains) // 2 :] > _MANY * missing.size
            if not gains.max():
                break
            chosen.append(int(gains.argmax()))
            missing = missing & ~np.outer(units[chosen[-1]], on[chosen[-1]])
        return chosen


def dense_layers(seen: list[Pulled], rng: np.random.Generator) -> Dense | None:
    """What explains these; None if more are needed."""
    if _straight(seen):
        return _one_layer(seen)
    space = RowSpace(seen)
    chosen = [int(i) for i in np.flatnonzero(space.inside & [one.on[-1] for one in seen])]
    terms = _terms(seen, space, chosen, rng) if len(chosen) > 1 else None
    if terms is None:
        return None
    outputs, patterns = terms
    some = [seen[i] for i in chosen]
    first = _solved(some, outputs, patterns, linear=True)
    for one in (one for i, one in enumerate(seen) if i not in set(chosen)):
        pattern, output = _further(first, one)
        if pattern is None:
            continue
        if output is not None:
            alike = np.abs(outputs[len(first.rows) :] @ output) > 1 - _NOTHING
            if not alike.any():
                outputs, alike = np.vstack([outputs, output]), np.append(alike, True)
                patterns = np.hstack([patterns, np.zeros((len(patterns), 1))])
            pattern = np.append(pattern, alike.astype(np.float64))
        more = np.zeros(patterns.shape[1])
        more[: len(pattern)] = pattern
        some, patterns = [*some, one], np.vstack([patterns, more])
    on_first, plain = _on_at_first(first, [seen[i] for i in chosen], terms[1])
    on_first = np.append(on_first, np.zeros(len(outputs) - len(on_first)))
    if plain:  # then units explain all, and fewer numbers are unknown
        patterns = np.abs(patterns - on_first)
        outputs = outputs * np.where(on_first, -1.0, 1.0)[:, None]
    found = _solved(some, outputs, patterns, linear=not plain)
    features = np.array([np.append(one.features, 1.0) for one in some])
    agree = _balanced(features @ found.rows.T > 0, patterns > 0)
    if np.abs(agree).min(initial=1.0) < _AGREE:
        return None
    signs = np.sign(agree)
    return replace(found, outputs=found.outputs * signs, rows=found.rows * signs[:, None])


def _straight(seen: list[Pulled]) -> bool:
    """Whether nothing switches behind the features, at most points at least: one dense layer follows."""
    first, shares = seen[0], []
    for one in seen[1:]:
        shared = one.on[:-1] & first.on[:-1]
        here, there = (some.piece[:, :-1][:, shared] for some in (first, one))
        shares.append(float(np.linalg.norm(there - here)) / max(float(np.linalg.norm(here)), _TINY))
    return float(np.median(shares)) < _STRAIGHT


def _one_layer(seen: list[Pulled]) -> Dense:
    """A linear layer; an answer that rounding puts on the other side of a boundary contradicts it, and is left out."""
    while True:
        found = _solved(seen, np.empty((0, len(seen[0].piece))), np.empty((len(seen), 0)), linear=True)
        left = np.array([np.linalg.norm((one.piece - found.linear)[:, :-1][:, one.on[:-1]]) for one in seen])
        agree = left <= _CONTRADICTS * np.median(left)
        if agree.all():
            return found
        seen = [one for one, right in zip(seen, agree, strict=True) if right]


def _terms(
    seen: list[Pulled], space: RowSpace, chosen: list[int], rng: np.random.Generator
) -> tuple[Array, Array] | None:
    """h×K output directions, and n×h patterns of the chosen points, zero at the first."""
    pieces = np.array([np.hstack([space.factors[i], seen[i].piece[:, -1:]]) for i in chosen])
    pieces[:, :, -1] /= float(np.sqrt(np.mean([np.sum((space.rows @ seen[i].features) ** 2) for i in chosen])))
    error = _LOST * space.error * np.sqrt(pieces[0].size)
    tensor = Tensor(pieces[1:] - pieces[0], np.zeros((len(chosen) - 1, 1)), np.zeros(1), error)
    telling = tensor.telling()
    fewer, directions = tensor.at(telling).reduced()
    terms = terms_of(fewer, rng, _ENUMERATED)
    if terms is None or max(terms.counts) > 1 or terms.others:
        return None
    outputs = np.array([directions @ p.outputs[:, 0] for p in terms.patterns])
    patterns = np.zeros((len(chosen), len(outputs)))
    patterns[1:][telling] = np.array([p.points for p in terms.patterns]).T
    return outputs, patterns


def _on_at_first(found: Dense, some: list[Pulled], patterns: Array) -> tuple[Array, bool]:
    """h: whether units are on at the first point, and whether nothing else is.

    v·relu(z) − v·z = v·relu(−z): the linear part is minus the sum of v⊗z over units that are on at the first point.
    """
    on = np.array([one.on[:-1] for one in some], dtype=np.float64)
    columns = np.flatnonzero(np.minimum(patterns.T @ on, (1 - patterns).T @ on).min(axis=0) >= _BOTH)
    if not len(columns):
        return np.zeros(len(found.rows)), False
    h = len(found.rows)
    system = np.einsum("kh,hf->kfh", found.outputs, found.rows[:, columns]).reshape(-1, h)
    linear = found.linear[:, columns].ravel()
    shares = -np.linalg.lstsq(system, linear)[0]
    first = (shares > 0.5).astype(np.float64)
    left = linear + system @ first
    return first, bool(np.abs(left).max() < _LEFT * np.abs(system).max())


def _solved(seen: list[Pulled], outputs: Array, patterns: Array, *, linear: bool) -> Dense:
    """Rows and the linear part by least squares, feature by feature, at the points where it is on."""
    h, K = outputs.shape
    on = np.array([one.on for one in seen], dtype=np.float64)
    pieces = np.array([one.piece for one in seen])
    unknowns = np.zeros((h + K, on.shape[1]))
    # There is always a constant.
    constant = on.shape[1] - 1
    sizes = 1 / np.array([1 + np.linalg.norm(one.features) for one in seen])  # constants are differences of values
    on[:, constant] *= sizes / sizes.max()
    for columns, used in ((np.arange(constant), h + K if linear else h), (np.array([constant]), h + K)):
        blocks = np.concatenate([patterns[:, None, :] * outputs.T, np.tile(np.eye(K), (len(seen), 1, 1))], axis=2)
        unknowns[:used, columns] = _least_squares(blocks[:, :, :used], on[:, columns], pieces[:, :, columns])
    shown = (patterns > 0 if h else np.ones((len(seen), 1))).T.astype(np.float64) @ on > 0
    return Dense(outputs.T, unknowns[:h], unknowns[h:], shown)


def _least_squares(blocks: Array, on: Array, given: Array) -> Array:
    """m×f: X with blocks_n·X_f = given_nf (n×K×f) at the points where feature f is ``on``, which are weights.

    Normal equations of all features at once, refined by what they leave, are as exact as orthogonal factors; what no
    point shows stays 0.
    """
    n, K, m = blocks.shape
    normal = np.einsum("nka,nkb->nab", blocks, blocks).reshape(n, m * m)
    systems = (on.T @ normal).reshape(-1, m, m)
    ridge = _RIDGE * np.einsum("faa->f", systems) + _TINY
    inverse = np.linalg.inv(systems + ridge[:, None, None] * np.eye(m))
    flat, found = blocks.reshape(n * K, m), np.zeros((m, on.shape[1]))
    for _ in range(_REFINED):
        left = (given - (flat @ found).reshape(given.shape)) * on[:, None, :]
        found += np.einsum("fab,bf->af", inverse, flat.T @ left.reshape(n * K, -1))
    return found


def _balanced(on: NDArray[np.bool_], pattern: NDArray[np.bool_]) -> Array:
    """h: how well signs agree with patterns, from −1 to 1; points that switch a unit count as much as the others."""
    switched = np.where(pattern, on, 0).sum(axis=0) / np.maximum(pattern.sum(axis=0), 1)
    others = np.where(pattern, 0, ~on).sum(axis=0) / np.maximum((~pattern).sum(axis=0), 1)
    return np.asarray(switched + others - 1)


def _further(found: Dense, seen: Pulled) -> tuple[Array | None, Array | None]:
    """Which units are not as at the first point, by least squares; and the output direction of one unit more.

    None where it cannot be told, and where no more unit is needed.
    """
    columns = np.flatnonzero(seen.on[:-1])
    if not len(columns):
        return None, None
    system = np.einsum("kh,hf->kfh", found.outputs, found.rows[:, columns]).reshape(-1, len(found.rows))
    given = (seen.piece - found.linear)[:, columns]
    shares = np.linalg.lstsq(system, given.ravel())[0]
    pattern = (shares > 0.5).astype(np.float64)
    left, sizes, _ = np.linalg.svd(given - (system @ pattern).reshape(given.shape), full_matrices=False)
    if len(sizes) > 1 and sizes[1] > _EXPLAINED * sizes[0] and sizes[1] > _EXPLAINED * float(np.linalg.norm(given)):
        return None, None
    return pattern, left[:, 0] if sizes[0] > _EXPLAINED * float(np.linalg.norm(given)) else None
