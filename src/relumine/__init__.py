"""relumine: how much of a model do its predictions and explanations give away?

Names are loaded when first used, so that importing relumine (and ``relumine --help``) does not import torch.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relumine.adapt.asking import Averaged as Averaged
    from relumine.adapt.asking import DecoyQueries as DecoyQueries
    from relumine.adapt.normalised import ScaledByValues as ScaledByValues
    from relumine.adapt.recipes import DividedByInput as DividedByInput
    from relumine.adapt.recipes import ScaledInputs as ScaledInputs
    from relumine.adapt.signs import SignsFromValues as SignsFromValues
    from relumine.auditing import Audited as Audited
    from relumine.auditing import audit as audit
    from relumine.errors import AccessError as AccessError
    from relumine.errors import BadAnswerError as BadAnswerError
    from relumine.errors import BudgetError as BudgetError
    from relumine.errors import ChangedError as ChangedError
    from relumine.errors import DataError as DataError
    from relumine.errors import DivergedError as DivergedError
    from relumine.errors import LedgerError as LedgerError
    from relumine.errors import MisuseError as MisuseError
    from relumine.errors import OracleError as OracleError
    from relumine.errors import OracleFailedError as OracleFailedError
    from relumine.errors import QuotaError as QuotaError
    from relumine.errors import RefusedError as RefusedError
    from relumine.errors import RelumineError as RelumineError
    from relumine.errors import StoreError as StoreError
    from relumine.errors import TargetError as TargetError
    from relumine.oracle.base import Answer as Answer
    from relumine.oracle.base import Offer as Offer
    from relumine.oracle.base import Oracle as Oracle
    from relumine.oracle.finite_difference import FiniteDifferences as FiniteDifferences
    from relumine.oracle.function import FunctionOracle as FunctionOracle
    from relumine.oracle.http.endpoint import Endpoint as Endpoint
    from relumine.oracle.http.oracle import HttpOracle as HttpOracle
    from relumine.oracle.logits import LogitLink as LogitLink
    from relumine.oracle.metering.ledger import Ledger as Ledger
    from relumine.oracle.metering.metered import Metered as Metered
    from relumine.oracle.metering.metered import Progress as Progress
    from relumine.oracle.metering.metered import Spent as Spent
    from relumine.oracle.predictor import PredictorOracle as PredictorOracle
    from relumine.oracle.sklearn import SklearnOracle as SklearnOracle
    from relumine.oracle.torch import TorchOracle as TorchOracle
    from relumine.probe.preflight import Findings as Findings
    from relumine.probe.preflight import Probe as Probe
    from relumine.reconstruct.auto import Auto as Auto
    from relumine.reconstruct.convolutional.method import Convolutional as Convolutional
    from relumine.reconstruct.deep.method import Deep as Deep
    from relumine.reconstruct.head.method import Head as Head
    from relumine.reconstruct.linear import Linear as Linear
    from relumine.reconstruct.matching.method import GradientMatching as GradientMatching
    from relumine.reconstruct.network import Network as Network
    from relumine.reconstruct.paper import PaperTwoLayer as PaperTwoLayer
    from relumine.reconstruct.result import Evidence as Evidence
    from relumine.reconstruct.result import Outcome as Outcome
    from relumine.reconstruct.result import Reconstruction as Reconstruction
    from relumine.reconstruct.result import Reconstructor as Reconstructor
    from relumine.reconstruct.two_layer.method import TwoLayer as TwoLayer
    from relumine.reconstruct.values.method import TwoLayerFromValues as TwoLayerFromValues

__version__ = "0.2.0"

_HOMES = {
    "auditing": "Audited",
    "errors": (
        "AccessError BadAnswerError BudgetError ChangedError DataError DivergedError LedgerError MisuseError "
        "OracleError OracleFailedError QuotaError RefusedError RelumineError StoreError TargetError"
    ),
    "adapt.asking": "Averaged DecoyQueries",
    "oracle.base": "Answer Offer Oracle",
    "oracle.http.endpoint": "Endpoint",
    "adapt.recipes": "DividedByInput ScaledInputs",
    "oracle.finite_difference": "FiniteDifferences",
    "oracle.function": "FunctionOracle",
    "oracle.http.oracle": "HttpOracle",
    "oracle.metering.ledger": "Ledger",
    "oracle.logits": "LogitLink",
    "oracle.metering.metered": "Metered Progress Spent",
    "adapt.normalised": "ScaledByValues",
    "adapt.signs": "SignsFromValues",
    "oracle.predictor": "PredictorOracle",
    "oracle.sklearn": "SklearnOracle",
    "oracle.torch": "TorchOracle",
    "probe.preflight": "Findings Probe",
    "reconstruct.auto": "Auto",
    "reconstruct.convolutional.method": "Convolutional",
    "reconstruct.deep.method": "Deep",
    "reconstruct.head.method": "Head",
    "reconstruct.linear": "Linear",
    "reconstruct.matching.method": "GradientMatching",
    "reconstruct.network": "Network",
    "reconstruct.paper": "PaperTwoLayer",
    "reconstruct.result": "Evidence Outcome Reconstruction Reconstructor",
    "reconstruct.two_layer.method": "TwoLayer",
    "reconstruct.values.method": "TwoLayerFromValues",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME_OF, "audit"]  # noqa: PLE0604


class _Audit(ModuleType):
    """The package ``relumine.audit``, which is the function ``relumine.audit(model, data)`` as well."""

    def __call__(self, *model_and_data: Any, **options: Any) -> Any:
        return import_module("relumine.auditing").audit(*model_and_data, **options)


if not TYPE_CHECKING:
    import_module("relumine.audit").__class__ = _Audit


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'relumine' has no attribute {name!r}")
    return getattr(import_module(f"relumine.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
