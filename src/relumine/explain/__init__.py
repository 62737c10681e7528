"""What an endpoint answers: gradients and what explainers make of them."""

from typing import TYPE_CHECKING

from relumine.explain.map_kind import MapKind as MapKind
from relumine.explain.methods import AbsoluteGradient as AbsoluteGradient
from relumine.explain.methods import Classes as Classes
from relumine.explain.methods import Cost as Cost
from relumine.explain.methods import Explained as Explained
from relumine.explain.methods import Explanation as Explanation
from relumine.explain.methods import Gradient as Gradient
from relumine.explain.methods import InputTimesGradient as InputTimesGradient
from relumine.explain.methods import IntegratedGradients as IntegratedGradients
from relumine.explain.methods import Of as Of
from relumine.explain.methods import SmoothGrad as SmoothGrad

if TYPE_CHECKING:
    from relumine.explain.oracle import ExplainedOracle as ExplainedOracle


def __getattr__(name: str) -> object:
    """ExplainedOracle when it is first used: it holds a torch module, and importing torch takes seconds."""
    if name != "ExplainedOracle":
        raise AttributeError(f"module 'relumine.explain' has no attribute {name!r}")
    from relumine.explain.oracle import ExplainedOracle

    return ExplainedOracle
