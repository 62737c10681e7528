"""Explanations: what explainers make of a gradient. One frozen record per method.

Each can be asked of a target (see ``ExplainedOracle``) and, because ``maps(…, create_graph=True)`` can be
differentiated in the module's parameters, of a student in a loss.

These few lines agree with Captum's Saliency, IntegratedGradients, InputXGradient and NoiseTunnel (a contract test
compares them) and stand in its place because Captum repeats the forward pass for every class and cuts the graph that
a student's loss needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from relumine.errors import BadAnswerError, MisuseError
from relumine.explain.map_kind import GRADIENT, MapKind, Smoothing
from relumine.oracle.base import Offer
from relumine.oracle.logits import tensor_probabilities

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Which outputs are explained: every one, each input's largest, or the one of this index.
Classes = Literal["all", "top"] | int
# What is explained. The module returns "real" numbers or "logits", which are taken as they are; or its logits are
# turned into probabilities or their logarithms first (a sigmoid where there is one output).
Of = Literal["real", "logits", "probabilities", "log-probabilities"]
OF: tuple[Of, ...] = ("real", "logits", "probabilities", "log-probabilities")


class Explained(NamedTuple):
    """Outputs n×K and their maps n×R×(input shape), one map per explained output."""

    values: "Tensor"
    maps: "Tensor"


@dataclass(frozen=True)
class Cost:
    """What one explained input costs: passes of one input through the target, and numbers that come back."""

    forward: int
    backward: int
    floats: int


@dataclass(frozen=True)
class Explanation:
    """A way to explain: what is made of the gradient at the input, or of gradients at several points.

    shows:     what its maps are
    elsewhere: whether gradients are taken at other points than the input, whose values are asked for besides
    """

    shows: ClassVar[MapKind] = GRADIENT
    elsewhere: ClassVar[bool] = False

    @property
    def kind(self) -> MapKind:
        """What its maps are, with its settings."""
        return self.shows

    @property
    def random(self) -> bool:
        """Whether the same question gets different answers."""
        return self.shows.smoothing is not None

    @property
    def linear(self) -> bool:
        """Whether the map of Σ v_k f_k is Σ v_k (map of f_k), so that a loss may match random projections of maps."""
        return self.shows.linear

    @property
    def gradients_per_map(self) -> int:
        """How many gradients one map is made of."""
        return 1

    def cost(self, offer: Offer) -> Cost:
        """What one answer with gradients costs behind this offer."""
        backward = self.gradients_per_map * offer.gradient_rows
        floats = offer.outputs + offer.gradient_rows * offer.dimension
        return Cost(self.gradients_per_map + self.elsewhere, backward, floats)

    def maps(
        self,
        module: "torch.nn.Module",
        inputs: "Tensor",
        *,
        classes: "Classes | Tensor" = "all",
        of: Of = "logits",
        create_graph: bool = False,
        rng: int | np.random.Generator | None = None,
    ) -> Explained:
        """Explain ``module`` at ``inputs`` (n×shape).

        ``classes`` may be a tensor n×R×K instead of a name: map r of input i then explains the combination of
        outputs with the coefficients ``classes[i, r]``: a one-hot row is a class chosen per input, a row of N(0, 1)
        numbers is a random projection of a linear explanation. With ``create_graph`` values and maps can be
        differentiated in the module's parameters. A row's map must depend on that row only, so a module with batch
        norm must be in eval mode.
        """
        import torch

        start = inputs.detach()
        with torch.enable_grad():
            if not self.elsewhere:
                leaf = start.requires_grad_()
                values = outputs(module, leaf, of)
                gradients = _gradients(values, leaf, _directions(classes, values), create_graph)
            else:
                points, weights = self._points(start, rng)
                with torch.set_grad_enabled(create_graph):
                    values = outputs(module, start, of)
                leaf = points.flatten(0, 1).requires_grad_()
                directions = _directions(classes, values).repeat_interleave(len(weights), 0)
                each = _gradients(outputs(module, leaf, of), leaf, directions, create_graph)
                each = each.view(*points.shape[:2], *each.shape[1:])
                gradients = torch.einsum("p,npr...->nr...", weights, each)
            shown = self._finished(start, gradients)
        return Explained(values, shown) if create_graph else Explained(values.detach(), shown.detach())

    def _points(self, inputs: "Tensor", rng: int | np.random.Generator | None) -> "tuple[Tensor, Tensor]":
        """Points n×P×shape and the P weights of their gradients: the inputs themselves, unless it looks elsewhere."""
        return inputs.unsqueeze(1), inputs.new_ones(1)

    def _finished(self, inputs: "Tensor", gradients: "Tensor") -> "Tensor":
        """The map, from the input n×shape and the (averaged) gradients n×R×shape."""
        return gradients


@dataclass(frozen=True)
class Gradient(Explanation):
    """∇f(x): the raw gradient (Captum: Saliency with abs=False)."""


@dataclass(frozen=True)
class AbsoluteGradient(Gradient):
    """|∇f(x)| per coordinate: Captum's Saliency as it comes. Not linear: sign is lost."""

    shows = MapKind(magnitudes=True)

    def _finished(self, inputs: "Tensor", gradients: "Tensor") -> "Tensor":
        return gradients.abs()


@dataclass(frozen=True)
class InputTimesGradient(Gradient):
    """x ⊙ ∇f(x) (Captum: InputXGradient)."""

    shows = MapKind(times_input=True)

    def _finished(self, inputs: "Tensor", gradients: "Tensor") -> "Tensor":
        return inputs.detach().unsqueeze(1) * gradients


@dataclass(frozen=True)
class SmoothGrad(Explanation):
    """(1/N) Σ ∇f(x + z_i), z_i ~ N(0, σ² I): the paper's appendix (its section 4 prints σ for the variance).

    sigma is in units of the input; the paper's choices are 1000 σ_D on MNIST and σ_D on CIFAR10, where σ_D is the
    standard deviation of the data (``Dataset.deviation``), with N = ``samples`` = 10.
    """

    sigma: float
    samples: int = 10

    shows = MapKind(Smoothing())
    elsewhere = True

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma > 0):
            raise MisuseError(
                f"SmoothGrad.sigma: expected a positive number, got {self.sigma}; without noise use Gradient"
            )
        _require_count("SmoothGrad.samples", self.samples)

    @property
    def kind(self) -> MapKind:
        """With σ and N."""
        return MapKind(Smoothing(self.sigma, self.samples))

    @property
    def gradients_per_map(self) -> int:
        """N."""
        return self.samples

    def points_around(self, inputs: "Tensor", count: int, rng: int | np.random.Generator | None) -> "Tensor":
        """``count`` points x + z for each input, n×count×shape."""
        import torch

        shape = (len(inputs), count, *inputs.shape[1:])
        # Drawn input by input: asking in one batch or in several uses the same noise for the same input.
        noise = np.random.default_rng(rng).standard_normal(shape, dtype=np.float32)
        return inputs.unsqueeze(1) + self.sigma * torch.from_numpy(noise).to(inputs)

    def _points(self, inputs: "Tensor", rng: int | np.random.Generator | None) -> tuple["Tensor", "Tensor"]:
        return self.points_around(inputs, self.samples, rng), inputs.new_full((self.samples,), 1 / self.samples)


@dataclass(frozen=True)
class IntegratedGradients(Explanation):
    """(x − x₀) ⊙ ∫₀¹ ∇f(x₀ + α(x − x₀)) dα, where every coordinate of x₀ is ``baseline``.

    Gauss–Legendre quadrature, as Captum does it.
    """

    shows = MapKind(path=True, times_input=True)
    elsewhere = True

    steps: int = 50
    baseline: float = 0.0

    def __post_init__(self) -> None:
        _require_count("IntegratedGradients.steps", self.steps)
        if not np.isfinite(self.baseline):
            raise MisuseError(f"IntegratedGradients.baseline: expected a finite number, got {self.baseline}")

    @property
    def gradients_per_map(self) -> int:
        """One per step of the quadrature."""
        return self.steps

    def _points(self, inputs: "Tensor", rng: int | np.random.Generator | None) -> tuple["Tensor", "Tensor"]:
        import torch

        nodes, weights = np.polynomial.legendre.leggauss(self.steps)
        alphas = torch.from_numpy((1 + nodes) / 2).to(inputs).view(1, -1, *[1] * (inputs.ndim - 1))
        return self.baseline + alphas * (inputs - self.baseline).unsqueeze(1), torch.from_numpy(weights / 2).to(inputs)

    def _finished(self, inputs: "Tensor", gradients: "Tensor") -> "Tensor":
        return (inputs - self.baseline).unsqueeze(1) * gradients


def explanation_of(kind: MapKind, gradients: int | None = None) -> Explanation:
    """The explanation that shows maps of a kind, or what such maps are made of; of ``gradients`` gradients each."""
    if kind.path:
        return IntegratedGradients() if gradients is None else IntegratedGradients(gradients)
    if kind.smoothing is not None:
        if kind.smoothing.sigma is None:
            raise MisuseError("SmoothGrad: expected the standard deviation of its noise, which nobody says")
        return SmoothGrad(kind.smoothing.sigma, gradients or kind.smoothing.samples)
    if kind.times_input:
        return InputTimesGradient()
    return AbsoluteGradient() if kind == MapKind(magnitudes=True) else Gradient()


def outputs(module: "Callable[[Tensor], Tensor]", inputs: "Tensor", of: Of) -> "Tensor":
    """What the module answers, n×K, as logits, probabilities or log-probabilities."""
    import torch
    from torch.nn import functional

    raw = module(inputs)
    if not isinstance(raw, torch.Tensor) or raw.ndim not in (1, 2) or len(raw) != len(inputs):
        got = tuple(raw.shape) if isinstance(raw, torch.Tensor) else type(raw).__name__
        raise BadAnswerError(f"the module: expected one tensor of shape ({len(inputs)}, K), got {got}")
    rows = raw.unsqueeze(1) if raw.ndim == 1 else raw
    if of == "probabilities":
        return tensor_probabilities(rows)
    if of == "log-probabilities":
        return functional.logsigmoid(rows) if rows.shape[1] == 1 else rows.log_softmax(1)
    if of in OF:
        return rows
    raise MisuseError(f"of: expected one of {OF}, got {of!r}")


def _directions(classes: "Classes | Tensor", values: "Tensor") -> "Tensor":
    """The coefficients n×R×K of the outputs that are explained."""
    import torch

    count, outputs = values.shape
    one_hot = torch.eye(outputs, dtype=values.dtype, device=values.device)
    if isinstance(classes, torch.Tensor):
        if classes.ndim != 3 or classes.shape[0] != count or classes.shape[2] != outputs:
            raise MisuseError(f"classes: expected a tensor ({count}, R, {outputs}), got {tuple(classes.shape)}")
        return classes.to(values)
    if classes == "all":
        return one_hot.expand(count, outputs, outputs)
    if classes == "top":
        return one_hot[values.argmax(1)].unsqueeze(1)
    if isinstance(classes, int) and 0 <= classes < outputs:
        return one_hot[classes].expand(count, 1, outputs)
    raise MisuseError(f"classes: expected 'all', 'top' or a class below {outputs}, got {classes!r}")


def _gradients(values: "Tensor", inputs: "Tensor", directions: "Tensor", create_graph: bool) -> "Tensor":
    """n×R×shape: one backward pass for each of the R directions, after one forward pass for all.

    A loop, not torch's batched backward pass: that one is faster for a single input only, and fails in modules with
    hooks or autograd functions of their own.
    """
    import torch

    if not values.requires_grad:
        raise MisuseError("the module's outputs cannot be differentiated in its inputs; does it detach or round them?")
    last = directions.shape[1] - 1
    rows = [
        torch.autograd.grad(
            (values * directions[:, r]).sum(),
            inputs,
            retain_graph=create_graph or r < last,
            create_graph=create_graph,
            materialize_grads=True,
        )[0]
        for r in range(last + 1)
    ]
    return torch.stack(rows, 1)


def _require_count(field: str, count: int) -> None:
    if count < 1:
        raise MisuseError(f"{field}: expected at least 1, got {count}")
