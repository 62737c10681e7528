"""How many queries SHAP values save: students of them, and the best of the values-only students, on the same queries.

    python benchmarks/shap_values.py [--seeds 11 12]

Targets are trained on half of the data; queries are drawn from a quarter, and students are compared on the rest.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import lightgbm
import numpy as np
import xgboost
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

import relumine as rl
from relumine.explain.tree_shap import TreeShap
from relumine.oracle.base import Array
from relumine.oracle.boosted import boosted
from relumine.oracle.metering.metered import Spent
from relumine.reconstruct.contributions import FromContributions
from relumine.reconstruct.portfolio.families import KINDS
from relumine.reconstruct.portfolio.method import Portfolio

QUERIES = (20, 50, 200)
ROUNDS = {"n_estimators": 60, "learning_rate": 0.2}


def problems(seed: int) -> Iterator[tuple[str, Array, Array, bool]]:
    """Name, inputs, labels, and whether these are classes."""
    yield "Friedman", *datasets.make_friedman1(4000, noise=1.0, random_state=seed), False
    classes = datasets.make_classification(4000, 12, n_informative=8, n_redundant=2, random_state=seed)
    yield "12 features, 2 classes", *classes, True


def models(*, classes: bool, seed: int) -> dict[str, Any]:
    """One of each library."""
    stumps = {"n_estimators": 100, "max_depth": 1, "learning_rate": 0.3}
    xgb, lgb = (
        (xgboost.XGBClassifier, lightgbm.LGBMClassifier) if classes else (xgboost.XGBRegressor, lightgbm.LGBMRegressor)
    )
    histogram = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    forest = RandomForestClassifier if classes else RandomForestRegressor
    return {
        "XGBoost, stumps": xgb(**stumps),
        "XGBoost, depth 4": xgb(max_depth=4, **ROUNDS),
        "LightGBM": lgb(n_estimators=60, verbose=-1),
        "HistGradientBoosting": histogram(max_iter=60),
        "RandomForest": forest(60, random_state=seed),
    }


def agreement(oracle: rl.Oracle, student: rl.Reconstruction, rows: Array) -> float:
    """Share of the same classes, or R²."""
    values, found = oracle(rows, gradients=False).values, student.predict(rows)
    if oracle.offer.values == "real":
        return 1 - float(((found - values) ** 2).mean() / values.var())
    return float((found.argmax(axis=1) == values.argmax(axis=1)).mean())


def compared(oracle: TreeShap, pool: Array, test: Array, count: int) -> tuple[float, float]:
    """Of SHAP values, and of values alone: the best of five kinds, judged on the test inputs, which favours it."""
    rows = pool[:count]
    answer = oracle(rows, gradients=True)
    student = FromContributions().fit(oracle.offer, rows, answer, 0, Spent())
    alone = [Portfolio(kind).fit(oracle.oracle.offer, rows, answer, 0, Spent()) for kind in KINDS]
    return agreement(oracle, student, test), max(agreement(oracle, one, test) for one in alone)


def main() -> None:
    """Print a table row per problem and model: means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12])
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    found: dict[tuple[str, str], list[Array]] = {}
    for seed in seeds:
        for name, inputs, labels, classes in problems(seed):
            order = np.random.default_rng(seed).permutation(len(inputs))
            x, y = inputs[order].astype(np.float32).astype(np.float64), labels[order]
            half, rest = len(x) // 2, 3 * len(x) // 4
            for kind, model in models(classes=classes, seed=seed).items():
                model.fit(x[:half], y[:half])
                oracle = TreeShap(rl.PredictorOracle(boosted(model) or model))
                rows = [compared(oracle, x[half:rest], x[rest:][:600], count) for count in QUERIES]
                found.setdefault((name, kind), []).append(np.array(rows))
    print("| data | model |" + "".join(f" SHAP, {n} | values, {n} |" for n in QUERIES))
    print("|---|---|" + "---|" * 2 * len(QUERIES))
    for (name, kind), tables in found.items():
        cells = "".join(f" {number:.3f} |" for number in np.mean(tables, axis=0).ravel())
        print(f"| {name} | {kind} |{cells}")


if __name__ == "__main__":
    main()
