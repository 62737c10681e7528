"""Mutants of the core: small faults that the tests must notice.

    python tests/mutants.py               # all of them, some minutes
    python tests/mutants.py "budget" …    # those whose names contain one of these

Each is applied to a copy of ``src``, and the tests named beside it, which are part of ``./run test``, are run on the
copy; a mutant with which they pass has survived. Exit code 1 if any has.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """A fault: in ``file`` of src/relumine, ``old`` (which stands there once) becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    def apply(self, package: Path) -> None:
        path = package / self.file
        text = path.read_text()
        assert text.count(self.old) == 1, f"{self.name}: expected its text once in {self.file}"
        path.write_text(text.replace(self.old, self.new))


MUTANTS = [
    Mutant(
        "verification tolerance",
        "reconstruct/verification/__init__.py",
        "np.flatnonzero(missed > tolerance)",
        "np.flatnonzero(missed > 1e6 * tolerance)",
        "tests/unit/test_linear.py tests/unit/test_domain.py",
    ),
    Mutant(
        "verification without consequence",
        "reconstruct/verification/__init__.py",
        "outcome = Outcome.NOT_VERIFIED if len(found.wrong) else Outcome.RECOVERED",
        "outcome = Outcome.RECOVERED",
        "tests/unit/test_domain.py tests/unit/test_two_layer.py",
    ),
    Mutant(
        "ledger write",
        "oracle/metering/ledger.py",
        'self._db.execute("COMMIT")',
        'self._db.execute("ROLLBACK")',
        "tests/unit/test_ledger.py",
    ),
    Mutant(
        "ledger of another target",
        "oracle/metering/ledger.py",
        "if stored.get(key, value) != value:",
        "if False:",
        "tests/unit/test_ledger.py",
    ),
    Mutant(
        "budget check",
        "oracle/metering/metered.py",
        "spent + rows > self._budget",
        "spent > self._budget",
        "tests/unit/test_metered.py",
    ),
    Mutant(
        "gradient queries counted as values",
        "oracle/metering/metered.py",
        "Tally(0 if gradients else rows, rows if gradients else 0,",
        "Tally(rows, 0,",
        "tests/unit/test_metered.py",
    ),
    Mutant(
        "budget of a defence",
        "defend/refuse.py",
        "if self.used + len(rows) > self.rows:",
        "if self.used > self.rows:",
        "tests/unit/test_defend.py",
    ),
    Mutant(
        "budget of a client",
        "serve/budgets.py",
        ":rows <= :limit",
        ":rows <= :limit + 1",
        "tests/unit/test_guard.py",
    ),
    Mutant(
        "requests counted for rows",
        "serve/guard.py",
        "self._budgets.spend(client, len(rows))",
        "self._budgets.spend(client, 1)",
        "tests/unit/test_guard.py",
    ),
    Mutant(
        "any token",
        "serve/keys.py",
        "if hmac.compare_digest(key.digest, digest)]",
        "if key.digest]",
        "tests/unit/test_serve.py",
    ),
    Mutant(
        "escaping in the report", "report/page.py", "autoescape=True", "autoescape=False", "tests/unit/test_report.py"
    ),
    Mutant(
        "canary",
        "oracle/metering/canary.py",
        "return self.agree(self._known[gradients], answer)",
        "return True",
        "tests/unit/test_http.py",
    ),
    Mutant(
        "sign of a slope",
        "oracle/finite_difference.py",
        "(answers[:, 1:] - answers[:, :1]) / moved",
        "(answers[:, :1] - answers[:, 1:]) / moved",
        "tests/unit/test_finite_difference.py",
    ),
    Mutant(
        "gradients of logits",
        "oracle/logits.py",
        "return _centred(jacobians / p[:, :, None])",
        "return jacobians / p[:, :, None]",
        "tests/unit/test_link.py",
    ),
    Mutant(
        "rounding of maps",
        "defend/noise.py",
        "np.round(maps, self.decimals)",
        "np.round(maps, self.decimals + 1)",
        "tests/unit/test_defend.py",
    ),
    Mutant(
        "threshold of a gate",
        "audit/gate.py",
        "(0 if condition.inclusive else 1)",
        "(1 if condition.inclusive else 0)",
        "tests/unit/test_audit_gate.py",
    ),
    Mutant(
        "an undecided gate before a failed one",
        "audit/gate.py",
        'for status in ("failed", "undecided"):',
        'for status in ("undecided", "failed"):',
        "tests/unit/test_audit_gate.py",
    ),
    Mutant(
        "servers elsewhere without authorisation",
        "oracle/http/endpoint.py",
        'if not self.is_local and not (self.authorized_by or "").strip():',
        "if False:",
        "tests/unit/test_http_endpoint.py",
    ),
    Mutant(
        "length of answers",
        "oracle/http/limits.py",
        "if len(body) > most:",
        "if len(body) > 1000 * most:",
        "tests/unit/test_hostile_answers.py",
    ),
    Mutant(
        "answers that are not finite",
        "oracle/base.py",
        "    if not np.isfinite(array).all():\n        bad",
        "    if False:\n        bad",
        "tests/unit/test_metered.py",
    ),
    Mutant(
        "the secret in a message",
        "oracle/http/sender.py",
        'text = text.replace(secret, "***") if secret else text',
        "text = text or secret",
        "tests/unit/test_http.py",
    ),
]


def survives(mutant: Mutant) -> bool:
    """Whether the tests beside a mutant pass with it."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        mutant.apply(Path(folder) / "src" / "relumine")
        environment = {**os.environ, "PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        assert done.returncode in (0, 1), done.stdout[-2000:] + done.stderr[-2000:]
        return done.returncode == 0


def main() -> None:
    wanted = sys.argv[1:] or [""]
    chosen = [mutant for mutant in MUTANTS if any(word in mutant.name for word in wanted)]
    survivors = []
    for mutant in chosen:
        if survives(mutant):
            survivors.append(mutant.name)
        print(f"{'SURVIVED' if mutant.name in survivors[-1:] else 'caught':<10}{mutant.name}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
