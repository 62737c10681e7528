"""The tables of docs/benchmarks.md, docs/two-layer.md and README.md, made from the rows, between their markers."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import log2
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import Any

Row = dict[str, Any]
Rows = list[Row]

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
# Tables that stand elsewhere, beside what they show.
ELSEWHERE = dict.fromkeys(("tensor", "smooth", "others", "rounded", "noisy"), DOCS / "two-layer.md") | {
    "readme": DOCS.parent / "README.md"
}

# Experiments whose clones cannot be verified, wholly or in part; their tables name the outcomes.
UNVERIFIED = ("noisy", "others")

# Experiments that share one table.
SEVERAL_OUTPUTS = ("tensor", "few", "wide")

# A clone that is called recovered and is further from its target than this is wrong.
WRONG = {"float64": 1e-6, "float32": 1e-3}
# Behind rounding, one that is further than this many times what it states.
WRONGLY_STATED = 3
# What ART returned, by its error.
EQUIVALENT, NEAR = 1e-6, 1e-2


def write(rows: dict[str, Rows]) -> None:
    """Replace what stands between the markers ``<!-- table NAME -->`` and ``<!-- end -->``."""
    rows = rows | {"tensor": [row for name in SEVERAL_OUTPUTS for row in rows[name]]}
    rows = {name: found for name, found in rows.items() if name not in SEVERAL_OUTPUTS[1:]}
    tables = {name: TABLES[name](found) for name, found in rows.items() if found}
    tables["readme"] = _readme([row for row in rows["tensor"] + rows["float64"] if row["h"] >= 32])
    tables["summary"] = _summary(rows)
    tables["runs"] = _runs([row for found in rows.values() for row in found])
    for name, table in tables.items():
        page = ELSEWHERE.get(name, PAGE)
        block = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        # As a function: backslashes in the table are not those of a template.
        inserted = partial(_inserted, table=table)
        text, replaced = re.subn(block, inserted, page.read_text(), flags=re.DOTALL)
        if replaced != 1:
            raise SystemExit(f"{page.name}: expected the markers of table {name!r} once, found them {replaced} times")
        page.write_text(text)


def _inserted(found: re.Match[str], table: str) -> str:
    return f"{found[1]}{table}\n{found[2]}"


# -- what is read off a group of rows


def recovered(rows: Rows) -> Rows:
    return [row for row in rows if row["outcome"] == "RECOVERED"]


def wrong(rows: Rows, error: str = "error") -> Rows:
    """Called recovered, and not equal to the target."""
    return [row for row in recovered(rows) if row.get(error, 0) > _allowed(row)]


def _allowed(row: Row) -> float:
    return WRONGLY_STATED * row["accuracy"] if row["experiment"] == "rounded" else WRONG[row["dtype"]]


def _share(rows: Rows) -> str:
    return f"{len(recovered(rows))} of {len(rows)}"


def _worst(rows: Rows, error: str = "error") -> str:
    found = [row[error] for row in recovered(rows) if error in row]
    return f"{max(found):.1e}" if found else "–"


def _above(rows: Rows, *limits: float) -> str:
    """The worst error, and how many of the recovered ones are less exact than each of these."""
    errors = [row["error"] for row in recovered(rows)]
    counts = ", ".join(f"{sum(error > limit for error in errors)} above {limit:.0e}" for limit in limits)
    return f"error ≤ {_worst(rows)} ({counts})"


def _all(row: Row) -> int:
    return int(row.get("gradient_queries", 0) + row["value_queries"])


def _per_unit(rows: Rows) -> list[float]:
    return [row["gradient_queries"] / row["h"] for row in rows]


def _gradients(rows: Rows) -> str:
    return f"{fmean(_per_unit(rows)):.2f} ({max(_per_unit(rows)):.2f})"


def _everything(rows: Rows) -> str:
    return f"{fmean(_all(row) / row['h'] for row in rows):.2f}"


def _mean(field: str) -> Callable[[Rows], str]:
    return lambda rows: f"{fmean(row.get(field, 0) for row in rows):,.0f}"


def _seconds(rows: Rows) -> str:
    return f"{median(row['seconds'] for row in rows):.2f}"


def _network(rows: Rows) -> str:
    return "{d}-{h}-{K}".format(**rows[0])


def _field(name: str) -> Callable[[Rows], str]:
    return lambda rows: str(rows[0][name])


def _biases(rows: Rows) -> str:
    return "yes" if rows[0]["bias"] else "no"


def _outside(rows: Rows) -> str:
    """Processor time outside the oracle."""
    seconds = [row["cpu_seconds"] - row["oracle_cpu_seconds"] for row in rows]
    return f"{median(seconds):.0f} ({max(seconds):.0f})"


# -- tables

Column = tuple[str, Callable[[Rows], str]]


# Rows of one line differ in nothing but the seed.
LINE = ("target", "d", "h", "K", "bias", "dtype", "values", "method")


def _groups(rows: Rows, by: Sequence[str] = LINE) -> Iterable[Rows]:
    """Rows that share these fields, in the order in which they were run."""
    groups: dict[tuple[object, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in by), []).append(row)
    return groups.values()


def _lines(titles: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (titles, ["---"] * len(titles), *cells))


def _table(*columns: Column, by: Sequence[str] = LINE) -> Callable[[Rows], str]:
    def made(rows: Rows) -> str:
        cells = ([read(group) for _, read in columns] for group in _groups(rows, by))
        return _lines([title for title, _ in columns], cells)

    return made


QUERIES: tuple[Column, ...] = (
    ("gradient queries per unit, mean (max)", _gradients),
    ("all queries per unit, mean", _everything),
    ("value queries, mean", _mean("value_queries")),
)


def _count(field: str) -> Callable[[Rows], str]:
    return lambda rows: f"{median(row[field] for row in rows):,.0f} ({max(row[field] for row in rows):,})"


COUNTS: tuple[Column, ...] = (
    ("gradient queries, median (max)", _count("gradient_queries")),
    ("value queries, median (max)", _count("value_queries")),
)


def _power(rows: Rows) -> str:
    counts = [row["value_queries"] for row in rows]
    return f"2^{log2(fmean(counts)):.2f} (2^{log2(max(counts)):.2f})"


def _per_parameter(rows: Rows) -> str:
    parameters = rows[0]["h"] * (rows[0]["d"] + 1 + rows[0]["K"]) + rows[0]["K"]
    return f"{fmean(row['value_queries'] for row in rows) / parameters:.3f}"


def _ours_or_theirs(*outcomes: str) -> Callable[[Rows], str]:
    return lambda rows: str(sum(kind(row) in outcomes for row in rows))


def kind(row: Row) -> str:
    """What a run amounts to; ART does not say whether what it returns is right."""
    if row["outcome"] not in ("returned", "RECOVERED"):
        return row["outcome"] if row["method"] == "ART" else "refused"
    return "equivalent" if row["error"] <= EQUIVALENT else "near" if row["error"] <= NEAR else "wrong"


def _median_queries(rows: Rows) -> str:
    gradients = median(row.get("gradient_queries", 0) for row in rows)
    values = median(row["value_queries"] for row in rows)
    return f"{values:,.0f} values" + (f" and {gradients:,.0f} gradients" if gradients else "")


def _score(rows: Rows) -> str:
    return f"{min(row['score'] for row in rows):.2f} – {max(row['score'] for row in rows):.2f}"


def _agreement(rows: Rows) -> str:
    found = [row["agreement"] for row in rows if "agreement" in row]
    return f"{min(found):.2%}" if found else "–"


def _mean_agreement(rows: Rows) -> str:
    found = [row.get("agreement", 0.0) for row in rows]
    return f"{fmean(found):.2%} ({min(found):.2%})"


def _stated(rows: Rows) -> str:
    found = [row["error"] / row["accuracy"] for row in recovered(rows)]
    return f"{median(row['accuracy'] for row in recovered(rows)):.1e} ({max(found):.1f})" if found else "–"


_readme = _table(
    ("network", _network),
    ("recovered", _share),
    *COUNTS,
    ("worst error", _worst),
    by=("d", "h", "K"),
)


def _named_right(row: Row) -> bool:
    """sigmoid(z) = (1 + tanh(z/2))/2: answers cannot tell the two apart."""
    return str(row["target"]).removeprefix("random, ").replace("sigmoid", "tanh") == str(row["activation"])


TABLES: dict[str, Callable[[Rows], str]] = {
    "rounded": _table(
        ("network", _network),
        ("answers", lambda rows: str(rows[0]["target"]).removeprefix("random, ")),
        ("recovered", _share),
        ("least agreement", _agreement),
        ("worst error", _worst),
        ("accuracy stated, median (largest error / stated)", _stated),
        *QUERIES[:1],
        QUERIES[2],
    ),
    "noisy": _table(
        ("network", _network),
        ("runs", lambda rows: str(len(rows))),
        ("outcomes", lambda rows: ", ".join(sorted({row["outcome"] for row in rows}))),
        ("units found, least", lambda rows: str(min(row["units"] for row in rows))),
        ("agreement, mean (least)", _mean_agreement),
        *COUNTS,
        ("seconds, median", _seconds),
    ),
    "tensor": _table(
        ("network", _network),
        ("biases", _biases),
        ("recovered", _share),
        ("worst error", _worst),
        *COUNTS,
        ("gradient queries per unit, mean", lambda rows: f"{fmean(_per_unit(rows)):.2f}"),
        ("seconds, median", _seconds),
    ),
    "smooth": _table(
        ("network", _network),
        ("computed in", _field("dtype")),
        ("answers", _field("values")),
        ("recovered", _share),
        ("named right", lambda rows: str(sum(map(_named_right, rows)))),
        ("worst error", _worst),
        *COUNTS,
        ("seconds, median", _seconds),
        by=("d", "h", "K", "dtype", "values"),
    ),
    "others": _table(
        ("network", _network),
        ("activation", lambda rows: str(rows[0]["target"]).removeprefix("random, ")),
        ("answers", _field("values")),
        ("outcomes", lambda rows: ", ".join(sorted({row["outcome"] for row in rows}))),
        ("named", lambda rows: ", ".join(sorted({str(row["activation"]) for row in rows}))),
        ("worst error", lambda rows: f"{max(row['error'] for row in rows):.1e}"),
        ("agreement, mean (least)", _mean_agreement),
        *COUNTS,
        by=("target", "values"),
    ),
    "mnist": _table(
        ("network", _network),
        ("answers", _field("values")),
        ("accuracy on test images", _score),
        ("recovered", _share),
        ("worst error", _worst),
        ("worst error on test images", lambda rows: _worst(rows, "error_on_data")),
        ("least agreement on test images", _agreement),
        *COUNTS,
        ("seconds, median", _seconds),
    ),
    "float64": _table(
        ("network", _network),
        ("biases", _biases),
        ("recovered", _share),
        ("worst error", _worst),
        *QUERIES,
        ("seconds, median", _seconds),
    ),
    "float32": _table(
        ("network", _network),
        ("weights", _field("target")),
        ("recovered", _share),
        ("worst error", _worst),
        ("worst error on its data", lambda rows: _worst(rows, "error_on_data")),
        *QUERIES,
        ("seconds, median", _seconds),
    ),
    "values": _table(
        ("network", _network),
        ("recovered", _share),
        ("worst error", _worst),
        ("value queries, mean (max)", _power),
        ("per parameter", _per_parameter),
        ("seconds, median", _seconds),
    ),
    "paper": _table(
        ("network", _network),
        ("method", _field("method")),
        ("recovered", _share),
        ("worst error", _worst),
        *QUERIES,
        ("seconds, median", _seconds),
    ),
    "art": _table(
        ("network", _network),
        ("method", _field("method")),
        ("equivalent", _ours_or_theirs("equivalent")),
        ("near", _ours_or_theirs("near")),
        ("silently wrong", _ours_or_theirs("wrong")),
        ("refused", _ours_or_theirs("refused")),
        ("never ended", _ours_or_theirs("never ended")),
        ("queries, median", _median_queries),
        ("seconds, median", _seconds),
    ),
    "sklearn": _table(
        ("data, inputs", _field("target")),
        ("hidden units", _field("h")),
        ("training score", _score),
        ("recovered", _share),
        ("worst error", _worst),
        ("worst error on its data", lambda rows: _worst(rows, "error_on_data")),
        *QUERIES[:2],
        by=("target", "h"),
    ),
    "seconds": _table(
        ("network", _network),
        ("runs", lambda rows: str(len(rows))),
        ("recovered", _share),
        ("processor seconds outside the oracle, median (max)", _outside),
        ("inside, median", lambda rows: f"{median(row['oracle_cpu_seconds'] for row in rows):.1f}"),
    ),
}


# -- over everything


def _claim(what: str, rows: Rows, *measured: str) -> list[str]:
    return [what, f"{_share(rows)} recovered, " + ", ".join(measured) if rows else "not run yet"]


def _most(rows: Rows, which: str) -> str:
    """Of these networks: the dearest one's mean, the dearest run, the dearest mean of all queries."""
    groups = _groups(rows)
    if not groups:
        return "queries not measured yet"
    mean = max(fmean(_per_unit(group)) for group in groups)
    run = max(max(_per_unit(group)) for group in groups)
    everything = max(fmean(_all(row) / row["h"] for row in group) for group in groups)
    gradients = f"at most {mean:.2f} gradient queries per unit in the mean of a network ({run:.2f} in a run)"
    return f"for {which} {gradients}, {everything:.2f} of both kinds"


def _counts(rows: Rows) -> list[str]:
    """Gradient queries of each network."""
    counts = [f"{_network(group)} {_count('gradient_queries')(group)}" for group in _groups(rows, ("d", "h", "K"))]
    return [*counts, "gradient queries: median (max)"]


def _from_values(rows: Rows, outputs: int) -> list[str]:
    queries = [f"{_power(rows)} value queries, mean (max)"] if rows else []
    return _claim(f"`TwoLayerFromValues`, 784-128-{outputs}", rows, _above(rows, 1e-6, 1e-9), *queries)


def _summary(rows: dict[str, Rows]) -> str:
    ten, few = ([row for row in rows["tensor"] if (row["K"] == 10) is several] for several in (True, False))
    one, smooth, mnist = rows["float64"], rows["smooth"], rows["mnist"]
    single, trained, timed = rows["float32"], rows["sklearn"], rows["seconds"]
    every = [row for found in rows.values() for row in found if row["method"] != "ART"]
    lines = [
        _claim(
            "`TwoLayer`, K = 10, float64",
            ten,
            _above(ten, 1e-9),
            *_counts(ten),
        ),
        _claim(
            "`TwoLayer`, K = 2 and 3, float64",
            few,
            _above(few, 1e-9),
            *_counts(few),
        ),
        _claim("`TwoLayer`, smooth activations", smooth, _above(smooth, 1e-8)),
        _claim(
            "`TwoLayer`, trained on MNIST, float32, logits and probabilities",
            mnist,
            _above(mnist, 1e-4),
            f"agreement ≥ {_agreement(mnist)}",
            *_counts(mnist),
        ),
        _claim(
            "`TwoLayer`, K = 1, float64",
            one,
            _above(one, 1e-9),
            _most([row for row in one if row["h"] <= row["d"]], "h ≤ d"),
            _most([row for row in one if row["h"] > row["d"]], "h > d"),
        ),
        _claim(
            "`TwoLayer`, float32 torch module, trained and random",
            single,
            _above(single, 1e-4, 1e-5),
        ),
        *(_from_values([row for row in rows["values"] if (row["h"], row["K"]) == (128, K)], K) for K in (1, 10)),
        _claim("trained scikit-learn MLPs", trained, _above(trained, 1e-9)),
        _claim(
            "processor time outside the oracle, 784-1000-10",
            timed,
            *([f"{_outside(timed)} seconds, median (max)"] if timed else []),
        ),
        [
            "wrong networks called recovered",
            f"{len(wrong(every))} in {len(recovered(every))}; on the data of trained targets "
            f"{len(wrong(every, 'error_on_data'))} in {sum('error_on_data' in row for row in recovered(every))}",
        ],
    ]
    return _lines(["what", "measured"], lines)


def _runs(rows: Rows) -> str:
    failed = [row for row in rows if row["method"] != "ART" and row["outcome"] != "RECOVERED"]
    failed = [row for row in failed if row["experiment"] not in UNVERIFIED]
    ours = sum(row["method"] != "ART" for row in rows)
    versions = ", ".join(dict.fromkeys(part for row in rows for part in str(row["versions"]).split(", ")))
    return "\n".join(
        [
            fill(
                f"{ours} runs of ours and {len(rows) - ours} of ART's; {versions}. Each row names its commit.",
                120,
                break_on_hyphens=False,
            ),
            "",
            f"Not recovered: {len(failed)} of ours" + (":" if failed else "."),
            *(
                f"\n- {row['method']} on {row['target']} {_network([row])}, {row['dtype']}, {row['values']}, "
                f"biases {_biases([row])}, seed {row['seed']}: {row['outcome']}"
                for row in failed
            ),
        ]
    )
