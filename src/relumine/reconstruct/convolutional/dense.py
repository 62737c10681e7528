"""The dense layers on known features: a linear one, or one hidden layer, by the tensor of Jacobians.

Around a point J = H·G with G the Jacobian of the features, which is known, so H = V·diag(g)·A follows by least squares
for all features that are on. Those that are on at some points alike make a tensor of ``relumine.reconstruct.tensor``;
its patterns g and output directions V give all of A by linear least squares.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq

from relumine.oracle.base import Array
from relumine.reconstruct.convolutional.layers import Front
from relumine.reconstruct.convolutional.sightings import Observation
from relumine.reconstruct.tensor.decomposition import Tensor, Terms, terms_of

# Up to so many points all patterns are tried, 2^12 of them; beyond, they are found by eigenvectors.
_ENUMERATED = 12
# So many more features than units are needed to count the units.
_SPARE = 4
# Below this part of the largest, a singular value is none.
_DEPENDENT = 1e-6
# Points of one tensor at most, and how many sets of them are tried before more are asked.
_MOST_POINTS, _TRIES = 48, 4
# A linear part below this share of the whole is none.
_NOTHING = 1e-6
# Signs of a unit that must be as its pattern says, beyond those by chance: rarely seen features may still spoil some.
_AGREE = 0.5
# What is left of a linear part that is none.
_LEFT = 1e-4
# A share of a unit that is so close to 0 or 1 is that.
_ROUND = 0.2


@dataclass(frozen=True, eq=False)
class Pulled:
    """An observation in terms of features: ``piece`` K×(F+1) is [H, constant], for features ``on`` and known."""

    features: Array
    piece: Array
    on: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Dense:
    """x ↦ outputs·relu(rows·[φ, 1]) + linear·[φ, 1]: ``outputs`` K×h, ``rows`` h×(F+1), ``linear`` K×(F+1)."""

    outputs: Array
    rows: Array
    linear: Array

    @property
    def plain(self) -> bool:
        """Whether nothing goes past the hidden units."""
        hidden = self.outputs @ self.rows
        return float(np.abs(self.linear[:, :-1]).max()) <= _NOTHING * max(float(np.abs(hidden).max()), 1e-300)


def pulled(front: Front, seen: Observation) -> Pulled:
    """The Jacobian of what follows the front, for the features that do not depend on each other around the point."""
    pieces = front.at(seen.point).pieces
    features = pieces[:, -1].toarray().ravel()
    on = np.flatnonzero(features != 0)
    rows = pieces[on, :-1].toarray()
    found, _, rank, _ = lstsq(rows.T, seen.jacobian.T, lapack_driver="gelsy")
    known = np.append(features != 0, True)
    if rank < len(on):  # what is part of a dependency is not known, and neither is the constant
        left, sizes, _ = np.linalg.svd(rows)
        free = left[:, int((sizes > _DEPENDENT * sizes[0]).sum()) :]
        known[on[np.linalg.norm(free, axis=1) > _DEPENDENT]] = False
        known[-1] = False
    piece = np.zeros((len(seen.values), len(features) + 1))
    piece[:, on] = found.T
    piece[:, -1] = seen.values - found.T @ features[on]
    return Pulled(features, piece, known)


def dense_layers(seen: list[Pulled], error: float, rng: np.random.Generator) -> Dense | None:
    """What explains all of these; None if more are needed.

    error: of one piece, relative to its length
    """
    if _straight(seen):
        return _solved(seen, np.empty((0, len(seen[0].piece))), np.empty((len(seen), 0)), linear=True)
    chosen, terms = _decomposed(seen, error, rng)
    if terms is None:
        return None
    outputs, patterns = _terms(terms)
    some = [seen[i] for i in chosen]
    columns = np.flatnonzero(np.all([one.on for one in some], axis=0))[:-1]
    first = _solved(some, outputs, patterns, linear=True)
    signs = _signs(first, some, patterns)
    for one in (one for i, one in enumerate(seen) if i not in set(chosen)):
        used = columns[one.on[columns]]
        pattern = _pattern(first, one, used)
        if pattern is None:
            pattern, output = _one_more(first, signs, one, used)
            if output is None:
                continue
            alike = np.abs(outputs[len(signs) :] @ output) > 1 - _NOTHING
            if not alike.any():
                outputs, alike = np.vstack([outputs, output]), np.append(alike, True)
                patterns = np.hstack([patterns, np.zeros((len(patterns), 1))])
            pattern = np.append(pattern, alike.astype(np.float64))
        more = np.zeros(patterns.shape[1])
        more[: len(pattern)] = pattern
        some, patterns = [*some, one], np.vstack([patterns, more])
    on_first, plain = _on_at_first(first, columns)
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
    return Dense(found.outputs * signs, found.rows * signs[:, None], found.linear)


def _straight(seen: list[Pulled]) -> bool:
    """Whether nothing switches behind the features, at most points at least: one dense layer follows."""
    first, size = seen[0], float(np.linalg.norm(seen[0].piece[:, :-1]))
    shared = [one.on[:-1] & first.on[:-1] for one in seen]
    gaps = [np.abs((one.piece - first.piece)[:, :-1][:, s]).max(initial=0) for one, s in zip(seen, shared, strict=True)]
    return float(np.median(gaps)) < _NOTHING * size


def _on_at_first(found: Dense, columns: NDArray[np.intp]) -> tuple[Array, bool]:
    """h: whether units are on at the first point, and whether nothing else is.

    v·relu(z) − v·z = v·relu(−z): the linear part is minus the sum of v⊗z over units that are on at the first point.
    """
    h = len(found.rows)
    system = np.einsum("kh,hf->kfh", found.outputs, found.rows[:, columns]).reshape(-1, h)
    linear = found.linear[:, columns].ravel()
    shares = -np.linalg.lstsq(system, linear)[0]
    on = (shares > 0.5).astype(np.float64)
    left = linear + system @ on
    return on, bool(np.abs(left).max() < _LEFT * np.abs(system).max())


def _decomposed(seen: list[Pulled], error: float, rng: np.random.Generator) -> tuple[list[int], Terms | None]:
    """Terms of as many points as leave enough features that are on at all of them."""
    order = _overlapping(np.array([one.on[:-1] for one in seen]))
    tries = 0
    while len(order) > 2 and tries < _TRIES:
        # Without the constants, which are differences of large numbers where images are strong.
        columns = np.flatnonzero(np.all([seen[i].on[:-1] for i in order], axis=0))
        base = seen[order[0]].piece[:, columns]
        differences = np.array([seen[i].piece[:, columns] - base for i in order[1:]])
        tensor = Tensor(differences, np.zeros((len(order) - 1, 1)), np.zeros(1), error * float(np.linalg.norm(base)))
        rank = tensor.rank if len(columns) else 0
        if rank and len(columns) >= rank + _SPARE:
            tries += 1
            fewer, directions = tensor.reduced()
            terms = terms_of(fewer, rng, _ENUMERATED)
            if terms is not None and max(terms.counts) == 1 and not terms.others:
                return order, _in_outputs(terms, directions)
        order = order[: -max(1, len(order) // 12)]
    return order, None


def _overlapping(on: NDArray[np.bool_]) -> list[int]:
    """Points in an order in which each leaves as many common features as can be, up to a number of points."""
    order = [int(on.sum(axis=1).argmax())]
    common = on[order].all(axis=0)
    while len(order) < min(len(on), _MOST_POINTS):
        left = (on & common).sum(axis=1).astype(float)
        left[order] = -1
        order.append(int(left.argmax()))
        common &= on[order[-1]]
    return order


def _in_outputs(terms: Terms, directions: Array) -> Terms:
    patterns = [replace(p, outputs=directions @ p.outputs) for p in terms.patterns]
    return replace(terms, patterns=patterns)


def _terms(terms: Terms) -> tuple[Array, Array]:
    """h×K output directions, and n×h patterns of all points, zero at the first."""
    outputs = np.array([p.outputs[:, 0] for p in terms.patterns])
    patterns = np.array([p.points for p in terms.patterns]).T
    return outputs, np.vstack([np.zeros((1, len(outputs))), patterns])


def _solved(seen: list[Pulled], outputs: Array, patterns: Array, *, linear: bool) -> Dense:
    """Rows and the linear part by least squares, feature by feature, at the points where it is on."""
    h, K = outputs.shape
    blocks = np.concatenate([patterns[:, None, :] * outputs.T, np.tile(np.eye(K), (len(seen), 1, 1))], axis=2)
    on = np.array([one.on for one in seen])
    pieces = np.array([one.piece for one in seen])
    unknowns = np.zeros((h + K, on.shape[1]))
    for mask in np.unique(on.T, axis=0):
        if not mask.any():
            continue
        columns = np.flatnonzero((mask == on.T).all(axis=1))
        used = h + K if linear or columns[-1] == on.shape[1] - 1 else h  # there is always a constant
        system = blocks[mask][:, :, :used].reshape(-1, used)
        given = pieces[mask][:, :, columns].reshape(len(system), -1)
        unknowns[:used, columns] = np.linalg.lstsq(system, given)[0]
    return Dense(outputs.T, unknowns[:h], unknowns[h:])


def _balanced(on: NDArray[np.bool_], pattern: NDArray[np.bool_]) -> Array:
    """h: how well signs agree with patterns, from −1 to 1; points that switch a unit count as much as the others."""
    switched = np.where(pattern, on, 0).sum(axis=0) / np.maximum(pattern.sum(axis=0), 1)
    others = np.where(pattern, 0, ~on).sum(axis=0) / np.maximum((~pattern).sum(axis=0), 1)
    return np.asarray(switched + others - 1)


def _signs(found: Dense, seen: list[Pulled], patterns: Array) -> Array:
    """h: ±1, so that units are on where they are not as at the first point."""
    features = np.array([np.append(one.features, 1.0) for one in seen])
    return np.where(_balanced(features @ found.rows.T > 0, patterns > 0) >= 0, 1.0, -1.0)


def _one_more(found: Dense, signs: Array, seen: Pulled, columns: NDArray[np.intp]) -> tuple[Array, Array | None]:
    """The pattern by the signs of pre-activations, and the output direction of one unit more if that explains it."""
    pattern = (signs * (found.rows @ np.append(seen.features, 1.0)) > 0).astype(np.float64)
    model = found.linear + (found.outputs * pattern) @ found.rows
    left, sizes, _ = np.linalg.svd((seen.piece - model)[:, columns], full_matrices=False)
    single = len(sizes) > 1 and sizes[0] > 0 and sizes[1] < _ROUND * _NOTHING * sizes[0]
    return pattern, left[:, 0] if single else None


def _pattern(found: Dense, seen: Pulled, columns: NDArray[np.intp]) -> Array | None:
    """Which units are not as at the first point, from the features that are known best; None if it cannot be told."""
    h, K = len(found.rows), len(found.outputs)
    if K * len(columns) < h + _SPARE:
        return None
    system = np.einsum("kh,hf->kfh", found.outputs, found.rows[:, columns]).reshape(-1, h)
    shares = np.linalg.lstsq(system, (seen.piece - found.linear)[:, columns].ravel())[0]
    pattern: Array = (shares > 0.5).astype(np.float64)
    return pattern if float(np.abs(shares - pattern).max()) < _ROUND else None
