"""Reading .skops files: scikit-learn models without pickles, of scikit-learn's own types only.

Some of these types compute in C with arrays that their files bring along. Trees, neighbours' trees and support vectors
are checked or built anew before anybody asks them: a child beyond the last node would be read beyond its memory.
"""

import io
from collections.abc import Iterator
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from relumine.errors import TargetError
from relumine.formats.container import packed, unpacked
from relumine.formats.loaded import Loaded
from relumine.formats.trees import check_tree

# Parts of fitted estimators that are no estimators themselves.
_PARTS = {
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
}


def load_skops(path: Path, _: tuple[int, ...] | None = None) -> Loaded:
    """The estimator of a .skops file, or a TargetError."""
    import skops.io

    parts = unpacked(path, "a scikit-learn model saved by skops")
    if "schema.json" not in parts:
        raise TargetError(f"{path}: expected a scikit-learn model saved by skops, got an archive of something else")
    for name, content in parts.items():
        if name.endswith(".npy"):
            _check_array(path, name, content)
    copy = packed(parts)
    types = skops.io.get_untrusted_types(data=copy)
    strange = [name for name in types if not _is_known(name)]
    if strange:
        raise TargetError(
            f"{path}: expected scikit-learn's own types only, got {', '.join(strange)}; "
            "write a factory that loads it: package.module:factory"
        )
    model = skops.io.loads(copy, trusted=types)
    try:
        for part in _parts(model, set()):
            _checked(part)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise TargetError(f"{path}: expected a fitted scikit-learn model, got one with {error}") from error
    return Loaded(model)


def _is_known(name: str) -> bool:
    """Whether it is one of scikit-learn's estimators, kernels or distances, or a part that these are made of."""
    from sklearn.base import BaseEstimator
    from sklearn.gaussian_process.kernels import Kernel
    from sklearn.metrics import DistanceMetric

    if name in _PARTS:
        return True
    home, _, last = name.rpartition(".")
    if not home.startswith("sklearn."):
        return False
    try:
        kind = getattr(import_module(home), last, None)
    except ImportError:
        return False
    if not isinstance(kind, type) or kind.__module__ != home:
        return False
    return issubclass(kind, BaseEstimator | Kernel | DistanceMetric)


def _parts(thing: Any, seen: set[int]) -> Iterator[Any]:
    """The estimator and everything inside."""
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type):
        return
    seen.add(id(thing))
    yield thing
    inside: Any = ()
    if isinstance(thing, dict):
        inside = thing.values()
    elif isinstance(thing, list | tuple | set) or (isinstance(thing, np.ndarray) and thing.dtype.hasobject):
        inside = thing.ravel() if isinstance(thing, np.ndarray) else thing
    for part in (*inside, *vars(thing).values()) if hasattr(thing, "__dict__") else inside:
        yield from _parts(part, seen)


def _checked(part: Any) -> None:
    """A ValueError for what would be read beyond its memory; trees must be of as many features as their owner."""
    from sklearn.ensemble._forest import BaseForest
    from sklearn.ensemble._gb import BaseGradientBoosting
    from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
    from sklearn.neighbors._base import NeighborsBase
    from sklearn.svm._base import BaseLibSVM
    from sklearn.tree import BaseDecisionTree

    if isinstance(part, BaseDecisionTree) and hasattr(part, "tree_"):
        _check_fitted_tree(part, part.n_features_in_)
    elif isinstance(part, BaseForest | BaseGradientBoosting) and hasattr(part, "estimators_"):
        trees = np.asarray(part.estimators_)
        for tree in trees.ravel():
            _check_fitted_tree(tree, part.n_features_in_)
        if isinstance(part, BaseGradientBoosting) and trees.shape[1] != part.n_trees_per_iteration_:
            raise ValueError(f"{trees.shape[1]} trees a round")
    elif isinstance(part, BaseHistGradientBoosting) and hasattr(part, "_predictors"):
        for predictor in (one for several in part._predictors for one in several):
            _check_predictor(predictor.nodes, part.n_features_in_)
    elif isinstance(part, NeighborsBase) and getattr(part, "_tree", None) is not None:
        kind = type(part._tree)
        part._tree = kind(part._fit_X, part.leaf_size, part.effective_metric_, **part.effective_metric_params_)
    elif isinstance(part, BaseLibSVM) and hasattr(part, "support_"):
        _check_support(part)


def _check_fitted_tree(model: Any, features: int) -> None:
    tree = model.tree_
    if tree.n_features != features:
        raise ValueError(f"a tree of {tree.n_features} features, not {features}")
    check_tree(tree.children_left, tree.children_right, tree.feature, features)


def _check_predictor(nodes: "np.ndarray[Any, Any]", features: int) -> None:
    if nodes["is_categorical"].any():
        raise ValueError("splits of categories, which are not read here")
    leaf = nodes["is_leaf"] != 0
    left, right = (np.where(leaf, -1, nodes[name].astype(np.int64)) for name in ("left", "right"))
    check_tree(left, right, nodes["feature_idx"].astype(np.int64), features)


def _check_support(model: Any) -> None:
    """libsvm is told by some arrays how long the others are."""
    vectors, counts = len(model.support_), model._n_support
    groups = len(counts) if hasattr(model, "classes_") else 2
    pairs = groups * (groups - 1) // 2
    sizes = (model.support_vectors_.shape, model._dual_coef_.shape, model._intercept_.shape)
    if sizes != ((vectors, model.n_features_in_), (groups - 1, vectors), (pairs,)):
        raise ValueError("support vectors of another size than declared")
    declared = counts.sum() if hasattr(model, "classes_") else counts[0]
    if (counts < 0).any() or declared != vectors or max(len(model._probA), len(model._probB)) not in (0, pairs):
        raise ValueError("another number of support vectors than declared")
    if hasattr(model, "classes_") and len(model.classes_) != groups:
        raise ValueError("another number of classes than declared")


def _check_array(path: Path, name: str, content: bytes) -> None:
    """The header of a .npy part must declare plain numbers, as many as there are."""
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError as error:
        raise TargetError(f"{path}: its part {name!r} is no array ({error})") from error
    there = len(content) - stream.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != there:
        raise TargetError(
            f"{path}: its part {name!r} declares an array of shape {shape} and type {dtype}, {there:,} bytes are there"
        )
