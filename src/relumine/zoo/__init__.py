"""The paper's networks and data. Names are loaded when first used, so that reading data does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relumine.zoo.data import Dataset as Dataset
    from relumine.zoo.data import Examples as Examples
    from relumine.zoo.data import Split as Split
    from relumine.zoo.data import dataset as dataset
    from relumine.zoo.data import gaussian_inputs as gaussian_inputs
    from relumine.zoo.networks import NETWORKS as NETWORKS
    from relumine.zoo.networks import network as network
    from relumine.zoo.training import Card as Card
    from relumine.zoo.training import Trained as Trained
    from relumine.zoo.training import Training as Training
    from relumine.zoo.training import trained as trained

_HOMES = {
    "data": "Dataset Examples Split dataset gaussian_inputs",
    "networks": "NETWORKS network",
    "training": "Card Trained Training trained",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME_OF]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'relumine.zoo' has no attribute {name!r}")
    return getattr(import_module(f"relumine.zoo.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]
