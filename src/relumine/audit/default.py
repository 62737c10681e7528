"""The target that is audited where none is named: a small network trained on scikit-learn's digits, shipped here.

64-32-10, float32. ``digits/card.json`` says how it was trained: it is ``zoo.trained("two_layer", split,
options={"hidden": 32})`` on ``zoo.dataset("digits").split(seed=0)``, whose other parts are the data of its audit.
"""

from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# As on the command line: what is loaded, the shape of its inputs, the data.
TARGET = "relumine.audit.default:digits_network"
SHAPE = (1, 8, 8)
DATA = "digits"


def digits_network() -> "torch.nn.Module":
    """The trained network."""
    from safetensors.torch import load

    from relumine import zoo

    module = zoo.network("two_layer", SHAPE, 10, hidden=32)
    module.load_state_dict(load(files("relumine.audit").joinpath("digits", "weights.safetensors").read_bytes()))
    return module.eval()
