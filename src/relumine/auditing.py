"""``relumine.audit(model, data)``: one call from a model and inputs to a verdict, a table and a report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from relumine.audit.data import AuditData, checked_data
from relumine.audit.result import AuditResult
from relumine.audit.run import Watch, run_audit
from relumine.audit.screen import AuditWatch, row_of
from relumine.audit.settings import AuditSettings
from relumine.audit.store import FILE
from relumine.audit.texts import data_for
from relumine.audit.trial import Subject, subject_from
from relumine.errors import MisuseError
from relumine.jobs.engines import Engine, ThisProcess
from relumine.oracle.base import GradientKind, Oracle, ValueKind
from relumine.oracle.predictor import FunctionPredictor
from relumine.targets import load_target, oracle_of, predicts

# The endings of files that a result can be written to.
ENDINGS = (".html", ".json", ".xml", ".sarif")

# The answers to the preflight of a server that nobody described.
_PREFLIGHT = "probe.sqlite"

# What messages and reports call inputs that are no file.
_DATA = "data"


@dataclass(frozen=True, repr=False)
class Audited(AuditResult):
    """What an audit found, as a notebook shows it; ``verdict``, ``warnings``, ``curves``, ``gates`` are plain data."""

    @property
    def table(self) -> list[dict[str, str]]:
        """A row per exposed output, as the command shows it; ``pandas.DataFrame(result.table)`` is a table, too."""
        return [row_of(curve, self.about.seeds) for curve in self.curves]

    def save(self, path: str | Path) -> Path:
        """Write the report (.html), all that was found (.json), JUnit (.xml) or SARIF (.sarif), by the ending."""
        path = Path(path)
        path.write_text(written(self, path), "utf-8")
        return path

    def __repr__(self) -> str:
        return f"<audit of {self.about.target}: {self.verdict}>"

    def _repr_html_(self) -> str:
        said = "".join(f"<p>⚠ {escape(warning)}</p>" for warning in self.warnings)
        gates = "".join(f"<p>{gate.status.upper()}: {escape(gate.condition)}</p>" for gate in self.gates)
        return f"{said}<p><b>{escape(self.verdict)}</b></p>{_html_table(self.table)}{gates}"


def _html_table(rows: Sequence[dict[str, str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def written(result: AuditResult, path: Path) -> str:
    """The result in the format that the file's ending stands for."""
    ending = path.suffix.lower()
    if ending == ".json":
        return result.to_json()
    if ending == ".xml":
        from relumine.audit.junit import junit_xml

        return junit_xml(result)
    if ending == ".sarif":
        from relumine.audit.sarif import sarif_json

        return sarif_json(result)
    if ending != ".html":
        raise MisuseError(f"save: expected a file ending in {', '.join(ENDINGS)}, got {path}")
    from relumine.report.page import render

    return render(result)


def audit(
    model: object,
    data: object = None,
    labels: object = None,
    *,
    values: ValueKind | None = None,
    gradients: GradientKind | None = None,
    input_shape: Sequence[int] | None = None,
    label_column: str | None = None,
    backbone: str | None = None,
    budget: int = 1000,
    seeds: int = 3,
    levels: Sequence[str] = (),
    defences: Sequence[str] = (),
    exposed: Sequence[str] = (),
    fail_on: Sequence[str] = (),
    preset: str | None = None,
    time_limit: float = 600,
    price: float | None = None,
    run: str | Path | None = None,
    workers: int = 1,
    progress: bool = True,
    name: str | None = None,
) -> Audited:
    """How many queries until a copy agrees with this model, at every level of access that it can give?

    model:  a torch module, a scikit-learn, XGBoost or LightGBM model, an Oracle, a Python function of n inputs (which
            answers labels, probabilities or numbers), or what ``relumine audit`` takes: a file, an address
    data:   inputs like those of its users: an array n×shape, a DataFrame, or a file as of ``relumine audit --data``
    backbone: the public backbone of the model, if it has one, as of ``relumine audit --backbone``
    labels: theirs, if known; of a DataFrame or a table also the ``label_column``
    run:    a folder that keeps every record; the same call goes on there after an interruption
    workers: processes; more than one need a model that can be pickled, and a script that guards its main program

    ``values``, ``gradients``, ``input_shape`` say what the model does not; the others are those of ``relumine audit``.
    """
    files = isinstance(model, str | Path) and (data is None or isinstance(data, str | Path)) and labels is None
    settings = AuditSettings(
        target=str(model) if isinstance(model, str | Path) else name or _name_of(model),
        input_shape=None if input_shape is None else tuple(input_shape),
        values=values,
        gradients=gradients,
        data=str(data) if files and data is not None else None,
        label_column=label_column if files else None,
        backbone=backbone,
        budget=budget,
        seeds=seeds,
        levels=tuple(levels),
        defences=tuple(defences),
        exposed=tuple(exposed),
        fail_on=tuple(fail_on),
        preset=preset,
        time_limit=time_limit,
        price=price,
        workers=workers,
    )
    subject = None if files else _subject(model, data, labels, settings, label_column)
    with _folder(run) as folder, _watched(progress) as watch, _one_thread():
        engine = ThisProcess() if workers == 1 else None
        command = f"rl.audit({settings.name})"
        return audited(settings, folder, subject=subject, watch=watch, command=command, engine=engine)


def audited(
    settings: AuditSettings,
    folder: Path,
    *,
    subject: Subject | None = None,
    watch: Watch | None = None,
    command: str = "",
    engine: Engine | None = None,
) -> Audited:
    """Run an audit as ``run_audit`` does; of a server that nobody described, after the preflight that describes it."""
    if subject is None and settings.is_undescribed:
        settings = _described(settings, folder)
    result = run_audit(settings, folder, command=command, watch=watch, engine=engine, subject=subject)
    return Audited(**{field.name: getattr(result, field.name) for field in fields(result)})


def _described(settings: AuditSettings, folder: Path) -> AuditSettings:
    """With the file that ``relumine probe --write-config`` would write, in the folder of the run."""
    from relumine.oracle.metering.ledger import Ledger
    from relumine.oracle.metering.metered import Metered
    from relumine.probe.discovery import description, found_at
    from relumine.probe.preflight import Probe

    path = folder / "endpoint.toml"
    if not path.exists():
        oracle = found_at(settings.target, settings.endpoint, inputs=settings.input_shape, gradients=settings.gradients)
        ledger = Ledger(folder / _PREFLIGHT)
        try:
            description(oracle, Probe()(Metered(oracle, ledger=ledger), rng=0)).write(path)
        finally:
            ledger.close()
            oracle.close()
    return replace(settings, endpoint=replace(settings.endpoint, endpoint_config=path))


def paid(folder: Path) -> bool:
    """Whether a run folder holds answers of a server."""
    from relumine.oracle.metering.ledger import Ledger

    ledgers = [Ledger(path) for path in folder.glob("*.sqlite") if path.name != FILE]
    try:
        return any(len(ledger) for ledger in ledgers)
    finally:
        for ledger in ledgers:
            ledger.close()


@contextmanager
def _folder(run: str | Path | None) -> Iterator[Path]:
    if run is not None:
        yield Path(run)
        return
    with TemporaryDirectory(prefix="relumine-") as folder:
        yield Path(folder)


@contextmanager
def _one_thread() -> Iterator[None]:
    """As every worker computes: small students lose more by sharing work than they win, and sums keep their order."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _watched(progress: bool) -> Any:
    from rich.console import Console

    return AuditWatch(Console(stderr=True)) if progress else nullcontext()


def _name_of(model: object) -> str:
    name = getattr(model, "__name__", None) or type(model).__name__
    return str(name).strip("<>")


def _subject(model: object, data: object, labels: object, settings: AuditSettings, label_column: str | None) -> Subject:
    """A model and inputs in memory as an audit takes them."""
    if isinstance(data, str | Path):
        oracle = _oracle(model, None, None, settings)
        return subject_from(oracle, data_for(oracle, data, label_column=label_column), settings)
    inputs, known = _arrays(data, labels, label_column)
    oracle = _oracle(model, inputs, known, settings)
    if inputs is None:
        return subject_from(oracle, None, settings)
    offer = oracle.offer
    found = checked_data(inputs, known, (), offer.inputs, offer.outputs, _DATA, real=_real(oracle))
    return subject_from(oracle, found, settings)


def _real(oracle: Oracle) -> bool:
    return oracle.offer.values == "real"


def _arrays(data: Any, labels: Any, label_column: str | None) -> "tuple[np.ndarray | None, np.ndarray | None]":
    if isinstance(data, tuple) and len(data) == 2 and labels is None:
        data, labels = data
    if label_column is not None:
        if not hasattr(data, "columns") or label_column not in data.columns:
            raise MisuseError(f"label_column: expected a column of a DataFrame, got {label_column!r}")
        data, labels = data.drop(columns=label_column), data[label_column]
    if data is None:
        return None, None
    inputs = _array("data", data)
    if inputs.ndim < 2:
        raise MisuseError(f"data: expected an array of inputs, n×shape, got the shape {inputs.shape}")
    return inputs, None if labels is None else _array("labels", labels)


def _array(what: str, numbers: Any) -> "np.ndarray":
    plain = numbers.detach().cpu() if hasattr(numbers, "detach") else numbers
    array = np.asarray(plain)
    if array.dtype == object:
        try:
            array = array.astype(str if what == "labels" else np.float64)
        except (TypeError, ValueError) as error:
            raise MisuseError(f"{what}: expected numbers, got {type(numbers).__name__} ({error})") from error
    return array


def _oracle(model: Any, inputs: "np.ndarray | None", labels: "np.ndarray | None", settings: AuditSettings) -> Oracle:
    shape, values = settings.input_shape, settings.values
    if isinstance(model, str | Path):
        return load_target(str(model), input_shape=shape, values=values, gradients=settings.gradients)
    if _is_function(model):
        if inputs is None:
            raise MisuseError("data: a function is told by its answers; give some inputs that it is for, as an array")
        return FunctionPredictor(model, _prepared(inputs), labels, values)
    if shape is None and inputs is not None and not predicts(model) and not isinstance(model, Oracle):
        shape = inputs.shape[1:]
    return oracle_of(model, input_shape=shape, values=values, gradients=settings.gradients)


def _is_function(model: object) -> bool:
    return isinstance(model, Callable) and not (  # type: ignore[arg-type]
        isinstance(model, Oracle) or predicts(model) or hasattr(model, "state_dict") or isinstance(model, type)
    )


def _prepared(inputs: "np.ndarray") -> "np.ndarray":
    """As the function will be asked: what is read from files is prepared the same way."""
    found: AuditData = checked_data(inputs, None, (), inputs.shape[1:], None, _DATA)
    return found.inputs.astype(inputs.dtype if inputs.dtype.kind == "f" else np.float64)
