"""Hand-made parts of an audit's result, for tests that need no run."""

from dataclasses import replace

from relumine.audit.result import About, AuditResult, Case, CloneMeasures, Record


def measures(agreement: float, **fields: object) -> CloneMeasures:
    """Of a clone that agrees so often."""
    plain = CloneMeasures(
        agreement=agreement,
        gaussian_agreement=agreement,
        accuracy=None,
        target_accuracy=None,
        worst_gap=1 - agreement,
        transfer=None,
        parameters_recovered=None,
    )
    return replace(plain, **fields)


def record(
    agreement: float | None,
    budget: int = 100,
    seed: int = 0,
    *,
    attack: str = "learned",
    level: str = "gradients",
    defence: str = "",
    outcome: str = "FITTED",
    queries: int | None = None,
    error: str | None = None,
) -> Record:
    """What came out of a case; no agreement is no clone."""
    asked = budget if queries is None else queries
    return Record(
        case=Case(level, defence, attack, budget, seed),
        outcome=outcome,
        remark="",
        error=error,
        spent={"value_queries": 0, "gradient_queries": asked, "floats": 10 * asked},
        measures=None if agreement is None else measures(agreement),
        seconds=1.0,
    )


def failed(budget: int = 100, seed: int = 0, **fields: object) -> Record:
    """A case that ended by an error."""
    fields = {"queries": 0, "error": "OracleFailedError: the target is down"} | fields
    return record(None, budget, seed, outcome="FAILED", **fields)


def about(**fields: object) -> About:
    """An audit of a sensible classifier."""
    plain = About(
        target="model.pt2",
        fingerprint="sha256:00",
        input_shape=(8, 8),
        outputs=10,
        values="logits",
        gradients="all",
        dtype="float32",
        data="digits.npz",
        labels=True,
        class_names=tuple("0123456789"),
        authorized_by=None,
        seeds=3,
        budget=1000,
        price=None,
        command="relumine audit model.pt2",
        started="2026-01-01T00:00:00+00:00",
        seconds=12.0,
        versions={"relumine": "0.1.0"},
        commit=None,
        test_inputs=900,
        majority=0.11,
        target_accuracy=0.97,
    )
    return replace(plain, **fields)


def result(**fields: object) -> AuditResult:
    """A result that holds nothing yet."""
    plain = AuditResult(about(), "A verdict.", warnings=(), curves=(), controls=(), gates=(), limits=())
    return replace(plain, **fields)
