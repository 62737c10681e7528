"""What defences change: every case of the grid (defence_grid.py), attacked exactly and by students.

    OMP_NUM_THREADS=1 python benchmarks/defences.py digits
    RELUMINE_DATA=… OMP_NUM_THREADS=1 python benchmarks/defences.py mnist
    python benchmarks/defences.py --page [--check]

One row per case in results/defences-DATA.jsonl, as it is done; cases that are there already are not run again.
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import relumine as rl
from defence_grid import Family, families
from relumine import zoo
from relumine.audit.asking import Questions, ask
from relumine.audit.attacks import Attack, attacks_for
from relumine.audit.knowledge import knowledge_of
from relumine.audit.levels import LEVELS, Setting
from relumine.audit.result import attack_name
from relumine.audit.usefulness import usefulness
from relumine.defend import parse
from relumine.jobs.provenance import provenance
from relumine.reconstruct.result import Clone, Reconstruction

Row = dict[str, Any]

RESULTS = Path(__file__).parents[1] / "results"
PAGE = Path(__file__).parents[1] / "docs" / "defence-results.md"
OPTIONS = {"digits": {"hidden": 32}, "mnist": {}}
BUDGETS = (10, 100, 1000)
EXACT_BUDGET = {"digits": 20_000, "mnist": 500_000}
# Families that are measured on the small target only.
ONLY_SMALL = ("consistent noise", "multiplicative noise", "noise on maps", "line detection", "PRADA")
SEEDS = 3
# Inputs by which clones are judged, at most.
TESTS = 2000
# Defences that change no answer they give.
REFUSING = ("", "box", "near", "budget", "lines", "prada")
# Of one core, for one attack; a row says if it was not enough.
SECONDS = 60
# Noise of the defence, of the view, and of judging are not the attacker's.
DEFENCE, VIEW = 1, 2


class OutOfTime(BaseException):
    """An attack took too long. Nobody catches it for something else."""


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTime(f"stopped after {SECONDS} seconds of one core")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


class Bench:
    """A target, its data, and the rows that are there already."""

    def __init__(self, data: str, folder: Path, seeds: Sequence[int] = range(SEEDS)) -> None:
        self.seeds = seeds
        loaded = zoo.dataset(data)
        self.data, self.deviation = data, loaded.deviation
        self.split = loaded.split(seed=0)
        self.target = zoo.trained("two_layer", self.split, options=OPTIONS[data])
        self.plain = rl.TorchOracle(self.target.module, self.split.shape)
        self.test = self.split.test.inputs[:TESTS].reshape(-1, self.plain.offer.dimension).astype(np.float64)
        self.pool = self.split.pool.astype(np.float64)
        self.labels = self.split.test.labels[:TESTS]
        self.classes = self.plain(self.test, gradients=False).values.argmax(1)
        self.gaussian = np.random.default_rng(1807).standard_normal((2000, self.test.shape[1]))
        self.gaussian_classes = self.plain(self.gaussian, gradients=False).values.argmax(1)
        self.path = folder / f"defences-{data}.jsonl"
        self.twins: dict[str | None, Reconstruction] = {}
        self.done = {key(row) for row in read(self.path)}

    def shown(self, level: str, words: str, seed: int) -> rl.Oracle:
        """The target at this level, behind this defence."""
        noise = [np.random.default_rng([seed, stream]) for stream in (DEFENCE, VIEW)]
        seen = LEVELS[level].of(self.plain, Setting(self.deviation, noise[1]))
        assert seen is not None, f"{level}: logits and gradients show every level"
        return parse(words)(seen, noise[0]) if words else seen

    def cases(self) -> Iterator[tuple[Family, str, Attack, int, int]]:
        """What is quick first, and 100 queries of all seeds before 10 and 1,000: so that a run that is cut short has
        something of everything."""
        grid = [(family, words) for family in self.families() for words in family.words]
        everything = [
            (family, words, attack, budget, seed)
            for seed in self.seeds
            for family, words in grid
            for attack in self.attacks(family.level, words)
            for budget in self.budgets(attack)
        ]
        return iter(sorted(everything, key=_urgency))

    def families(self) -> list[Family]:
        small = self.data == "digits"
        grid = families(self.plain.offer, self.deviation)
        return [each for each in grid if small or (each.level != "probabilities" and each.title not in ONLY_SMALL)]

    def budgets(self, attack: Attack) -> tuple[int, ...]:
        if attack.key.kind == "exact":
            return (EXACT_BUDGET[self.data],)
        return BUDGETS[-1:] if attack.key.averaged else BUDGETS

    def attacks(self, level: str, words: str) -> list[Attack]:
        """All, but for those that ask for values alone where maps are shown too: the levels without maps have them."""
        chain = parse(words) if words else None
        found = attacks_for(level, self.shown(level, words, 0).offer, chain, self.deviation)
        if level == "gradients":
            found = tuple(attack for attack in found if attack.key.of == "explanations")
        return [attack for attack in found if attack.key.student != "conv"]

    def run(self, family: Family, words: str, attack: Attack, budget: int, seed: int) -> Row:
        started = time.perf_counter()
        meter = rl.Metered(self.shown(family.level, words, seed), budget=budget)
        maybe_same = attack.key.kind == "student" and words.partition(":")[0] in REFUSING
        answers = self.answers(family.level, words, budget, seed, attack) if maybe_same else None
        twin = self.twins.get(answers)
        error = None
        try:
            with time_limit():
                result = twin or attack(meter, budget, seed, self.pool)
        except (rl.RelumineError, OutOfTime) as raised:  # a row too
            result, error = None, f"{type(raised).__name__}: {raised}"
        if answers is not None and result is not None:
            self.twins[answers] = result
        spent = meter.spent if result is None else result.spent
        return {
            "data": self.data,
            "family": family.title,
            "level": family.level,
            "defence": words,
            "attack": attack.key.name,
            "exact": attack.key.kind == "exact",
            "budget": budget,
            "seed": seed,
            "outcome": result.outcome.name if result else "FAILED",
            "remark": "" if result is None else result.evidence.remark,
            "error": error,
            "value_queries": spent.value_queries,
            "gradient_queries": spent.gradient_queries,
            "floats": spent.floats,
            **self.measures(None if result is None else result.clone),
            **asdict(provenance(time.perf_counter() - started)),
        }

    def answers(self, level: str, words: str, budget: int, seed: int, attack: Attack) -> str:
        """What a student is taught, in short: where a defence changes none of it, the student is the same one."""
        oracle = rl.Metered(self.shown(level, words, seed), budget=budget)
        questions = Questions(oracle.offer, self.pool, np.random.default_rng(seed))
        maps = attack.key.of == "explanations"
        asked = ask(oracle, budget, questions, gradients=maps)
        known = knowledge_of(level, parse(words) if words else None, self.deviation)
        taught = [asked.rows.tobytes(), asked.answer.values.tobytes()]
        taught += [asked.answer.jacobians.tobytes()] if maps else []
        said = repr(
            (
                attack.key.name,
                oracle.offer.values,
                oracle.offer.gradients,
                known.maps,
                known.distorted,
                known.explanation(),
            )
        )
        return hashlib.sha256(b"".join([*taught, said.encode()])).hexdigest()

    def measures(self, clone: Clone | None) -> Row:
        if clone is None:
            return {"agreement": None, "gaussian_agreement": None, "accuracy": None}
        guesses = clone.predict(self.test).argmax(1)
        return {
            "agreement": round(float((guesses == self.classes).mean()), 4),
            "gaussian_agreement": round(
                float((clone.predict(self.gaussian).argmax(1) == self.gaussian_classes).mean()), 4
            ),
            "accuracy": round(float((guesses == self.labels).mean()), 4),
        }

    def worth(self, family: Family, words: str) -> Row:
        """The row that says what the explanation is worth to its reader, and which attacks are to be run."""
        found = usefulness(self.plain, self.shown(family.level, words, 0), self.test, rng=0)
        row = {"data": self.data, "family": family.title, "level": family.level, "defence": words, "attack": ""}
        attacks = [attack.key.name for attack in self.attacks(family.level, words)]
        worth = None if found is None else asdict(found)
        kept = self.kept_class(self.shown(family.level, words, 0))
        more = {"kept_class": kept, "attacks": attacks, "values_as": self.values_as(family.level, words)}
        return row | {"usefulness": worth, **more, "budget": 0, "seed": 0}

    def values_as(self, level: str, words: str) -> tuple[str, str] | None:
        """The level and defence without explanations that show the same values, so that its students count here too."""
        name = words.partition(":")[0]
        if level != "gradients" or (words and name in REFUSING):
            return None
        if name == "label":
            return ("label", "")
        if knowledge_of(level, parse(words) if words else None).true_values:
            return ("logits", "")
        return ("logits", words) if words in ("round:4", "round:2") else None

    def kept_class(self, shown: rl.Oracle) -> float:
        """For which share of the test inputs that are answered a user still gets the target's class."""
        asked = ask(shown, len(self.test), Questions(shown.offer, self.test, np.random.default_rng(0)), gradients=False)
        classes = self.plain(asked.rows, gradients=False).values.argmax(1)
        return round(float((asked.answer.values.argmax(1) == classes).mean()), 4)

    def go(self) -> None:
        for family in self.families():
            for words in family.words:
                case = {"level": family.level, "defence": words, "attack": "", "budget": 0, "seed": 0}
                self.put(case, partial(self.worth, family, words))
        for family, words, attack, budget, seed in self.cases():
            case = {"level": family.level, "defence": words, "attack": attack.key.name, "budget": budget, "seed": seed}
            self.put(case, partial(self.run, family, words, attack, budget, seed))

    def put(self, case: Row, run: Callable[[], Row]) -> None:
        if key(case) in self.done:
            return
        row = run()
        with self.path.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        told = row.get("outcome", "usefulness"), row.get("agreement"), row.get("seconds")
        print(*key(row), *told, flush=True)


def _urgency(case: tuple[Family, str, Attack, int, int]) -> tuple[bool, int, int, bool]:
    _, words, attack, budget, seed = case
    besides = attack.key.kind == "student" and budget in (BUDGETS[0], BUDGETS[-1])
    return besides and seed > 0, seed, _slowness(attack, words), besides


def _slowness(attack: Attack, words: str) -> int:
    coarse = any(name in words for name in ("round", "noise", "smoothgrad"))
    return 1 + coarse if attack.key.kind == "exact" else 0


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("level", "defence", "attack", "budget", "seed"))


def _named(row: Row) -> Row:
    """With the names that attacks have today."""
    planned = [attack_name(attack, row["level"]) for attack in row.get("attacks", ())]
    return row | {"attack": attack_name(row["attack"], row["level"]), "attacks": planned}


def read(path: Path) -> list[Row]:
    """The rows of a file; of two of the same case the first."""
    rows: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = _named(json.loads(line))
        rows.setdefault(key(row), row)
    return [*rows.values()]


def write_page(folder: Path, *, check: bool) -> int:
    """Write the page and its tables, or say which of them are not what the rows say."""
    from defences_page import page, table

    found = {data: rows for data in OPTIONS if (rows := read(folder / f"defences-{data}.jsonl"))}
    texts = {PAGE: page(found), **{folder / f"defences-{data}.csv": table(rows) for data, rows in found.items()}}
    wrong = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        if check:
            print(f"{path} is not what the rows say; write it with --page")
        else:
            path.write_text(texts[path])
    return int(check and bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help=", ".join(OPTIONS))
    parser.add_argument("--rows", type=Path, default=RESULTS, help="the folder of the rows")
    parser.add_argument("--seed", type=int, action="append", help="only this one; repeatable")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--check", action="store_true")
    said = parser.parse_args()
    if not {*said.data} <= {*OPTIONS}:
        parser.error(f"expected {' or '.join(OPTIONS)}, got {', '.join(said.data)}")
    for data in said.data:
        Bench(data, said.rows, said.seed or range(SEEDS)).go()
    return write_page(said.rows, check=said.check) if said.page or said.check else 0


if __name__ == "__main__":
    sys.exit(main())
