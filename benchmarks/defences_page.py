"""docs/defence-results.md and its tables, from the rows of benchmarks/defences.py. Numbers in sentences are of rows."""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import inf
from statistics import mean
from textwrap import fill
from typing import Any

Row = dict[str, Any]

BUDGETS = (10, 100, 1000)
# A clone that agrees this often is called close.
CLOSE = 0.95
# The attacks that ask for explanations are held against these, which do not.
BASELINES = ("no explanation, logits", "no explanation, probabilities", "no explanation, label only")
TITLES = {"digits": "Digits: 64-32-10", "mnist": "MNIST: 784-256-10"}

HEAD = """\
# What defences change

A defence was put in front of a trained two-layer network, and the network was reconstructed all the same: exactly,
and by a student that learns from the answers. This page says how often that worked, and what the defended explanation
was still worth to an honest reader. All {defended} defended versions are in two tables:
[digits](../results/defences-digits.csv) and [mnist](../results/defences-mnist.csv).

Made by `OMP_NUM_THREADS=1 python benchmarks/defences.py digits`, the same with `mnist` (and `RELUMINE_DATA`), and
`python benchmarks/defences.py --page` from the rows ([digits](../results/defences-digits.jsonl),
[mnist](../results/defences-mnist.jsonl)); `--check` compares page and tables with the rows.
{provenance}

## How to read it

- **Threat model**: the attacker knows the defence and its settings, and has inputs like those of the owner's users,
  none of them the target's training data. What the attacks make of each defence is in `relumine.audit.knowledge`; all
  defences are described in [defences.md](defences.md).
- **exact**: `RECOVERED` means that the clone equals the target on all compared fresh points, within what the
  answers' precision allows. Given are the seeds in which that happened and the mean number of queries (values and
  gradients together, verification included), at most {exact_budget}.
  Where it did not happen, the last outcome and the mean agreement of the unproved clone. *adapted*: averaging,
  neighbours, signs and scale found by values, scaled inputs, inputs inside a box, decoy queries. A dash: no exact
  attack fits.
- **student**: agreement of its class with the target's on (at most 2,000) test inputs, mean (lowest–highest seed), by
  number of queries. Of several students the best mean is shown: *averaged* marks one that repeats each query ten
  times, *values alone* one that ignores explanations, *labels* one that ignores all but the class. Students have
  {hidden}; better ones can be trained.
- **class kept**: for which share of the test inputs that are answered an honest user still gets the target's class.
- **explanation**: what its reader keeps of the undefended map on 40 test inputs: rank correlation, overlap of the
  most important tenth, and the advantage over a random order in deletion / insertion (1: all of it).
- **first close**: the fewest queries tried with which an attack reached a mean agreement of {close:.0%}, and which
  attack it was.
- {seeds}
"""

LIMITS = """\
## Limits

- A defence that held here was not broken by these attacks within these queries. That does not make it safe.
- Both targets are small networks of one hidden layer, the class that exact reconstruction is best at. Deeper and
  convolutional targets were not measured.
- The attacker's inputs are of the same kind as the target's data. Without such inputs students do worse; exact
  attacks need none.
- Strengths go in decades and powers of two; where between two of them a defence begins to hold is not known.
- The hyperparameters of students (weights, rate, steps) were chosen by agreement on the same test inputs, on digits
  with two of the seeds and on MNIST with one; decoy queries of random rows, and students of labels and of averaged
  values, were added where other attacks had failed. No seeds were held back: figures may flatter the attacks.
- Where a defence refuses rows but changes no answer (`box`, `near`, `budget`, `lines`, `prada`), a student that was
  taught the same answers as the undefended target's is that same student, and was not trained again.
- An attack had 60 seconds of one core. "Out of time" says nothing about the defence.
- Usefulness is measured on the model's own terms. What people make of a map is another question.
"""


@dataclass(frozen=True)
class Case:
    """All rows of one defence at one level, and those of students that see the same values and no explanations."""

    family: str
    level: str
    defence: str
    rows: tuple[Row, ...]
    values_alone: tuple[Row, ...] = ()

    @property
    def name(self) -> str:
        return f"`{self.defence}`" if self.defence else "–"

    @property
    def exact(self) -> dict[str, list[Row]]:
        return _by_attack(row for row in self.rows if row["attack"] and row["exact"])

    @property
    def learned(self) -> dict[str, list[Row]]:
        return _by_attack(row for row in self.rows if row["attack"] and not row["exact"])

    @property
    def usefulness(self) -> Mapping[str, float] | None:
        return next((row["usefulness"] for row in self.rows if not row["attack"]), None)

    @property
    def kept_class(self) -> float:
        return next(float(row["kept_class"]) for row in self.rows if not row["attack"])

    @property
    def shares_values(self) -> bool:
        """Whether a level without explanations shows the same values."""
        return any(row["values_as"] for row in self.rows if not row["attack"])

    def recovered(self) -> bool:
        """Whether an exact attack ended well with every seed."""
        return any(all(row["outcome"] == "RECOVERED" for row in rows) for rows in self.exact.values())

    @property
    def students(self) -> dict[str, list[Row]]:
        """All of them, whether they look at explanations or not."""
        return {**_by_attack(self.values_alone), **self.learned}

    def student(self, budget: int, *, explained: bool = False) -> tuple[str, list[float]] | None:
        """The attack whose students did best at a budget, and their agreements; ``explained``: of its own only."""
        students = self.learned if explained else self.students
        found = {
            attack: [row["agreement"] for row in rows if row["budget"] == budget and row["agreement"] is not None]
            for attack, rows in students.items()
        }
        return max(
            ((attack, each) for attack, each in found.items() if each), key=lambda one: mean(one[1]), default=None
        )

    def first_close(self) -> tuple[float, str] | None:
        """The fewest queries that gave a close clone, and who asked them."""
        found = []
        for attack, rows in [*self.exact.items(), *self.students.items()]:
            for budget in {row["budget"] for row in rows}:
                some = [row for row in rows if row["budget"] == budget]
                if mean(row["agreement"] or 0.0 for row in some) >= CLOSE:
                    found.append((mean(_queries(row) for row in some), attack))
        return min(found, default=None)

    def complete(self) -> bool:
        """Whether every attack was run, and every budget of students, those of values alone included."""
        planned = next((row["attacks"] for row in self.rows if not row["attack"]), ())
        if self.shares_values and {row["budget"] for row in self.values_alone} < {*BUDGETS}:
            return False
        measured = {*self.exact, *self.learned}
        return measured >= {*planned} and all(self.student(budget, explained=True) is not None for budget in BUDGETS)


def page(rows: Mapping[str, Sequence[Row]]) -> str:
    """The whole page, from the rows of each dataset."""
    everything = [row for each in rows.values() for row in each if row["attack"]]
    defended = sum(bool(case.defence) for each in rows.values() for case in _cases(each))
    parts = [HEAD.format(defended=defended, **_facts(everything))]
    for data, each in rows.items():
        cases = _cases(each)
        parts.append("\n".join([f"## {TITLES[data]}", "", *_found(cases), "", *_strongest(cases), ""]))
    return "\n".join([*parts, LIMITS]).rstrip() + "\n"


def table(rows: Sequence[Row]) -> str:
    """Every defended version of one dataset's target, as CSV."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("family", "level", *HEADER))
    lines.writerows((case.family, case.level, case.defence, *_line(case)[1:]) for case in _cases(rows))
    return text.getvalue()


def _facts(rows: Sequence[Row]) -> dict[str, Any]:
    versions = sorted({", ".join(f"{name} {number}" for name, number in row["versions"].items()) for row in rows})
    minutes = sum(row["seconds"] for row in rows) / 60
    seeds = len({row["seed"] for row in rows})
    return {
        "provenance": _wrapped(
            f"{len(rows):,} reconstructions, {minutes:.0f} minutes on two cores that did other work too; "
            f"{'; '.join(versions)}. Each row names its commit."
        ),
        "exact_budget": " or ".join(f"{most:,} ({data})" for data, most in _exact_budgets(rows).items()),
        "close": CLOSE,
        "hidden": "128 hidden units (MNIST: 256) and learn for 200 steps (MNIST: 600)",
        "seeds": _wrapped(
            f"Seeds: {seeds} for the attack, its inputs and the defence's noise; the target is one and the same. "
            "Entries with fewer say so in brackets: (n = 1).",
            "  ",
        ),
    }


def _exact_budgets(rows: Sequence[Row]) -> dict[str, int]:
    return {row["data"]: row["budget"] for row in rows if row["exact"]}


def _cases(rows: Sequence[Row]) -> list[Case]:
    keys = dict.fromkeys((row["family"], row["level"], row["defence"]) for row in rows)
    return [_case(key, rows) for key in keys]


def _case(key: tuple[str, str, str], rows: Sequence[Row]) -> Case:
    own = tuple(row for row in rows if (row["family"], row["level"], row["defence"]) == key)
    same = next((row["values_as"] for row in own if not row["attack"]), None)
    alone = (
        row for row in rows if same and [row["level"], row["defence"]] == [*same] and row["attack"] and not row["exact"]
    )
    return Case(*key, own, tuple(alone))


def _by_attack(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["attack"], []).append(row)
    return groups


def _queries(row: Row) -> int:
    return int(row["value_queries"] + row["gradient_queries"])


# -- what was found, in words


def _found(cases: Sequence[Case]) -> list[str]:
    defended = [case for case in cases if case.defence and case.complete()]
    exact = [case for case in defended if case.recovered()]
    close = [case for case in defended if not case.recovered() and case.first_close()]
    held = [case for case in defended if not case.recovered() and not case.first_close()]
    return [
        f"Of {len(defended)} defended versions ({_seeds(defended)}),",
        "",
        *map(
            _item,
            (
                f"**{len(exact)} were recovered exactly** with every seed tried: {_listed(exact)}.",
                f"**{len(close)} were not, but a clone agreed on {CLOSE:.0%}** of the test inputs within the queries "
                f"tried: {_listed(close)}.",
                f"**{len(held)} kept every clone below {CLOSE:.0%}** (in brackets the best mean agreement, and the "
                f"rank correlation that the explanation keeps): {_listed(held, told=_held)}.",
                *_gained(cases),
            ),
        ),
    ]


def _seeds(cases: Sequence[Case]) -> str:
    """With how many seeds the attacks on these were run, at least and at most."""
    groups = [
        (attack, row["budget"], case.name, case.level)
        for case in cases
        for row in case.rows
        if (attack := row["attack"])
    ]
    counts = [groups.count(group) for group in {*groups}]
    if not counts:
        return "none is measured to the end yet"
    return f"{min(counts)} to {max(counts)} seeds each" if min(counts) < max(counts) else f"{max(counts)} seeds each"


def _listed(cases: Sequence[Case], told: Callable[[Case], str] = lambda case: "") -> str:
    levels = {"gradients": ""}
    return (
        ", ".join(f"{case.name}{levels.get(case.level, f' of {case.level}')}{told(case)}" for case in cases) or "none"
    )


def _held(case: Case) -> str:
    worth = case.usefulness
    best = max(mean(found[1]) for budget in BUDGETS if (found := case.student(budget)))
    return f" ({_share(best)}, {'no explanation' if worth is None else format(worth['rank_correlation'], '.2f')})"


def _gained(cases: Sequence[Case]) -> list[str]:
    """What defended maps add to what the values beside them give away."""
    plain = next((case for case in cases if case.family == BASELINES[0] and not case.defence), None)
    base = None if plain is None else plain.student(BUDGETS[0])
    if base is None:
        return []
    level = mean(base[1])
    students = {
        case.defence: mean(found[1])
        for case in cases
        if case.level == "gradients" and case.defence and (found := case.student(BUDGETS[0], explained=True))
    }
    no_better = [words for words, agreement in students.items() if agreement <= level]
    return [
        f"After {BUDGETS[0]} queries a student of logits alone agrees on {level:.0%}. Behind "
        f"{len(students) - len(no_better)} of {len(students)} defences "
        "of explanations a student with explanations does better; behind "
        f"{', '.join(f'`{words}`' for words in no_better) or 'none'} it does not."
    ]


# -- tables


HEADER = (
    "defence",
    "exact",
    *(f"student, {budget:,}" for budget in BUDGETS),
    "class kept",
    "explanation: ranks, top tenth, deletion / insertion",
    "first close",
)


def _strongest(cases: Sequence[Case]) -> list[str]:
    """One line per family."""
    families = dict.fromkeys(case.family for case in cases)
    chosen = [max((case for case in cases if case.family == family), key=_strength) for family in families]
    rows = [(case.family, *_line(case)) for case in chosen]
    return ["Of each family the version that held best:", "", *_table(("family", *HEADER), rows)]


def _strength(case: Case) -> tuple[bool, float, float, float]:
    """Not recovered; then most queries for a close clone; then the worst student; then most queries to recover."""
    close, student = case.first_close(), case.student(BUDGETS[0])
    spent = [_queries(row) for rows in case.exact.values() for row in rows]
    agreement = mean(student[1]) if student else 0.0
    return not case.recovered(), close[0] if close else inf, -agreement, mean(spent) if spent else 0.0


def _line(case: Case) -> tuple[str, ...]:
    return (
        case.name,
        "; ".join(_exact(attack, rows) for attack, rows in case.exact.items()) or "–",
        *(_student(case, budget) for budget in BUDGETS),
        _share(case.kept_class),
        _worth(case.usefulness),
        _first(case),
    )


def _ended(row: Row) -> str:
    """How an attack that did not recover the target ended."""
    return "out of time" if str(row.get("error", "")).startswith("OutOfTime") else str(row["outcome"])


def _exact(attack: str, rows: Sequence[Row]) -> str:
    way = attack.removeprefix("exact").removeprefix(", ")
    good = [row for row in rows if row["outcome"] == "RECOVERED"]
    if good:
        told = f"{len(good)} of {len(rows)}, {mean(map(_queries, good)):,.0f} queries"
    else:
        agreements = [row["agreement"] for row in rows if row["agreement"] is not None]
        told = f"0 of {len(rows)}, {_ended(rows[-1])}" + (f", {_share(mean(agreements))}" if agreements else "")
    return f"{told} ({way})" if way else told


def _student(case: Case, budget: int) -> str:
    found = case.student(budget)
    if found is None:
        return "–"
    attack, agreements = found
    marks = ["averaged"] if attack.endswith("averaged") else ["labels"] if attack.endswith("labels") else []
    marks += ["values alone"] if case.level == "gradients" and attack == "values-only student" else []
    marks += [f"n = {len(agreements)}"] if len(agreements) < 3 else []
    spread = "" if len(agreements) == 1 else f" ({100 * min(agreements):.0f}–{100 * max(agreements):.0f})"
    return f"{_share(mean(agreements))}{spread}" + (f" ({', '.join(marks)})" if marks else "")


def _worth(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "none"
    ranks, top, *both = (f"{found[name]:.2f}" for name in ("rank_correlation", "top_overlap", "deletion", "insertion"))
    return f"{ranks}, {top}, {' / '.join(both)}"


def _first(case: Case) -> str:
    found = case.first_close()
    if found is None:
        return "not within the queries tried" if case.complete() else "–"
    queries, attack = found
    return f"{queries:,.0f}: {attack}"


def _share(number: float) -> str:
    return f"{100 * number:.1f} %"


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> str:
    return _wrapped(f"- {text}", "  ")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    marked = ["|".join(("", *(f" {cell} " for cell in row), "")) for row in (header, *rows)]
    return [marked[0], "|" + "---|" * len(header), *marked[1:]]
