"""What a report shows of a clone: its saliency maps beside the target's, and recovered units beside the true ones."""

import numpy as np

from relumine.audit.data import AuditData
from relumine.audit.parameters import Pairs, first_layer
from relumine.audit.result import Picture, UnitPair
from relumine.explain import Gradient
from relumine.oracle.base import Array, Oracle
from relumine.reconstruct.network import Network
from relumine.reconstruct.portfolio.method import Copy
from relumine.reconstruct.result import Clone

# Inputs in the gallery, of different classes where there are several.
_PICTURES = 6
# Units in the gallery, the largest first.
_UNITS = 16
# Larger maps are not drawn: a page would hold megabytes of numbers.
_LARGEST = 4096
_DIGITS = 5


def gallery_of(clone: Clone, target: Oracle, test: AuditData) -> tuple[Picture, ...]:
    """Some test inputs with the target's and the clone's gradient of the target's class."""
    offer = target.offer
    if isinstance(clone, Copy):  # it has no gradients
        return ()
    if offer.gradients not in ("all", "top") or offer.values in ("none", "label") or offer.dimension > _LARGEST:
        return ()
    rows = _varied(test.rows, target)
    answer = target(rows, gradients=True)
    shown = answer.values.argmax(axis=1)
    maps = answer.jacobians[:, 0] if offer.gradients == "top" else answer.jacobians[np.arange(len(rows)), shown]
    clone_maps, clone_values = _maps(clone, rows, offer.inputs, np.eye(offer.outputs)[shown])
    return tuple(
        Picture(
            input=_numbers(rows[i]),
            target_map=_numbers(maps[i]),
            clone_map=_numbers(clone_maps[i]),
            shape=offer.inputs,
            target_class=_class(answer.values[i], test),
            clone_class=_class(clone_values[i], test),
        )
        for i in range(len(rows))
    )


def _varied(rows: Array, target: Oracle) -> Array:
    """The first input of each class that the target tells apart, then others."""
    few = rows[:200]
    classes = target(few, gradients=False).values.argmax(axis=1)
    _, first = np.unique(classes, return_index=True)
    rest = np.setdiff1d(np.arange(len(few)), first)
    chosen = np.concatenate([np.sort(first), rest])[:_PICTURES]
    result: Array = few[chosen]
    return result


def _maps(clone: Clone, rows: Array, shape: tuple[int, ...], shown: Array) -> tuple[Array, Array]:
    """The clone's gradient of the shown class (one-hot), n×d, and its outputs."""
    import torch

    module = clone.to_torch()
    inputs = torch.from_numpy(rows.reshape(-1, *shape)).to(next(module.parameters()))
    values, maps = Gradient().maps(module, inputs, classes=torch.from_numpy(shown[:, None]))
    return maps.flatten(1).numpy().astype(np.float64), values.numpy().astype(np.float64)


def _class(values: Array, test: AuditData) -> str:
    """The class's name, or its number; of a single output its value."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    number = int(values.argmax())
    return test.class_names[number] if number < len(test.class_names) else str(number)


def unit_pairs_of(clone: Clone, target: Oracle) -> tuple[UnitPair, ...]:
    """The largest units of the first layer beside the recovered ones, paired as the measures pair them."""
    true = first_layer(target)
    if true is None or not isinstance(clone, Network) or target.offer.dimension > _LARGEST:
        return ()
    pairs = Pairs(*true, clone.weights[0], clone.biases[0], either_way=clone.skip is not None)
    order = [unit for unit in np.argsort(-pairs.lengths, kind="stable") if pairs.paired[unit]][:_UNITS]
    return tuple(
        UnitPair(_numbers(row), _numbers(recovered), float(np.linalg.norm(row - recovered)))
        for row, recovered in zip(pairs.rows[order], pairs.recovered[order], strict=True)
    )


def _numbers(row: Array) -> tuple[float, ...]:
    return tuple(float(f"{number:.{_DIGITS}g}") for number in row)
