"""The paper's networks and data. What holds torch is loaded when first used: reading data does not import it."""

from importlib import import_module
from typing import TYPE_CHECKING

from relumine.zoo.data import Dataset as Dataset
from relumine.zoo.data import Examples as Examples
from relumine.zoo.data import Split as Split
from relumine.zoo.data import dataset as dataset
from relumine.zoo.data import gaussian_inputs as gaussian_inputs

if TYPE_CHECKING:
    from relumine.zoo.networks import NETWORKS as NETWORKS
    from relumine.zoo.networks import network as network
    from relumine.zoo.training import Card as Card
    from relumine.zoo.training import Trained as Trained
    from relumine.zoo.training import Training as Training
    from relumine.zoo.training import trained as trained

_HOMES = dict.fromkeys(("NETWORKS", "network"), "networks")
_HOMES |= dict.fromkeys(("Card", "Trained", "Training", "trained"), "training")


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'relumine.zoo' has no attribute {name!r}")
    return getattr(import_module(f"relumine.zoo.{_HOMES[name]}"), name)
