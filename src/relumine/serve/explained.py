"""From a loaded target and the chosen explanation to the oracle that is served."""

import copy
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeGuard

from relumine.errors import MisuseError, translated
from relumine.explain.map_kind import ExplanationName, map_kind
from relumine.oracle.base import DType, Oracle

if TYPE_CHECKING:
    import torch

    from relumine.oracle.torch import TorchOracle


@dataclass(frozen=True)
class Choice:
    """What an endpoint shows.

    explain: which explanation; "none" answers predictions only
    classes: of every output, or of each input's largest
    of:      what values are and what is explained
    dtype:   the precision to compute in, by default the model's own
    sigma:   standard deviation of SmoothGrad's noise
    seed:    source of SmoothGrad's noise
    """

    explain: ExplanationName | Literal["none"] = "gradient"
    classes: Literal["all", "top"] = "all"
    of: Literal["real", "logits", "probabilities"] = "logits"
    dtype: DType | None = None
    sigma: float = 0.1
    seed: int = 0


def explained(oracle: Oracle, choice: Choice) -> Oracle:
    """The oracle that shows what was chosen. Of other targets than torch modules, only what they answer themselves."""
    if not _is_torch_oracle(oracle):
        if choice == Choice(of=choice.of, seed=choice.seed):
            return oracle
        raise MisuseError(
            "--explain, --classes, --dtype: expected a torch module (.pt2, .pt, .onnx, .safetensors or a factory) to "
            "choose them for; other models show what they answer by themselves"
        )
    from relumine.oracle.torch import TorchOracle

    module, shape = _in_precision(oracle, choice.dtype), oracle.offer.inputs
    if choice.explain in ("gradient", "none"):
        gradients = choice.classes if choice.explain == "gradient" else "none"
        return TorchOracle(module, shape, gradients=gradients, values=choice.of)
    if choice.of == "probabilities":
        _require_logits(module, shape, choice)
    from relumine.explain import ExplainedOracle
    from relumine.explain.methods import explanation_of

    shown = explanation_of(map_kind(choice.explain).smoothed_by(choice.sigma))
    # Exported programs and scripts cannot always be copied.
    with translated(MisuseError, f"--explain {choice.explain}: this model cannot be explained so: "):
        return ExplainedOracle(module, shown, shape, classes=choice.classes, of=choice.of, rng=choice.seed)


def _is_torch_oracle(oracle: Oracle) -> "TypeGuard[TorchOracle]":
    """A caller that holds one has imported its module, which takes seconds."""
    home = sys.modules.get("relumine.oracle.torch")
    return home is not None and type(oracle) is home.TorchOracle


def _in_precision(oracle: "TorchOracle", dtype: DType | None) -> "torch.nn.Module":
    import torch

    if dtype is None or dtype == oracle.offer.dtype:
        return oracle.module
    with translated(MisuseError, f"--dtype {dtype}: this model cannot be converted: "):
        return copy.deepcopy(oracle.module).to(getattr(torch, dtype))


def _require_logits(module: "torch.nn.Module", shape: tuple[int, ...], choice: Choice) -> None:
    """A softmax is put behind the module, which must not end in one of its own."""
    from relumine.oracle.torch import TorchOracle

    try:
        TorchOracle(module, shape, gradients="none", values="logits")
    except MisuseError as error:
        raise MisuseError(
            f"--explain {choice.explain} --of probabilities: expected logits, {error}; say --of real"
        ) from error
