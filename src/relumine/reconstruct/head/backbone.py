"""Backbone: the public part of a target, φ from inputs to features, and its Jacobian."""

from typing import TYPE_CHECKING

from relumine.errors import MisuseError
from relumine.oracle.base import Array, Offer, Oracle

if TYPE_CHECKING:
    import torch


class Backbone:
    """φ and J_φ as an oracle answers them: values are features, gradients those of every feature."""

    def __init__(self, oracle: Oracle) -> None:
        offer = oracle.offer
        if offer.gradients != "all" or offer.values in ("label", "none"):
            raise MisuseError(
                "backbone: expected an oracle that answers features and the gradients of all of them, got "
                f"values={offer.values!r}, gradients={offer.gradients!r}"
            )
        self.oracle = oracle

    @property
    def features(self) -> int:
        """F, how many numbers φ(x) has."""
        return self.oracle.offer.outputs

    @property
    def module(self) -> "torch.nn.Module | None":
        """The torch module behind it, if there is one."""
        module: torch.nn.Module | None = getattr(self.oracle, "module", None)
        return module

    def __call__(self, rows: Array) -> Array:
        """n×F: φ of n×d inputs."""
        return self.oracle(rows, gradients=False).values

    def jacobian(self, row: Array) -> Array:
        """F×d: J_φ at one input."""
        jacobian: Array = self.oracle(row[None], gradients=True).jacobians[0]
        return jacobian

    def onto(self, basis: Array) -> "Backbone":
        """x ↦ B·φ(x) for a basis B (r×F): its Jacobian costs r backward passes instead of F."""
        if self.module is None:
            return _Projected(self.oracle, basis)
        from relumine.reconstruct.head.torch_backbone import projected

        return Backbone(projected(self.module, basis, self.oracle.offer))


class _Projected(Backbone):
    """The same by multiplication, where φ is no torch module."""

    def __init__(self, oracle: Oracle, basis: Array) -> None:
        super().__init__(oracle)
        self._basis = basis

    def __call__(self, rows: Array) -> Array:
        result: Array = super().__call__(rows) @ self._basis.T
        return result

    def jacobian(self, row: Array) -> Array:
        result: Array = self._basis @ super().jacobian(row)
        return result


def backbone_of(given: "Oracle | torch.nn.Module", offer: Offer) -> Backbone:
    """A torch module, or an oracle, as the backbone of a target of this offer; or a MisuseError."""
    if isinstance(given, Oracle):
        inputs = given.offer.dimension
        if inputs != offer.dimension:
            raise MisuseError(f"backbone: expected inputs of {offer.dimension} numbers as the target has, got {inputs}")
        return Backbone(given)
    from relumine.reconstruct.head.torch_backbone import answering

    return Backbone(answering(given, offer))
