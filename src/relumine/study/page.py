"""The results page: the paper's claims beside ours, and the figures, in Markdown; their points as CSV."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from io import StringIO
from itertools import product
from pathlib import Path
from textwrap import fill

from relumine.study.claims import findings
from relumine.study.designs import FigureName, Scale
from relumine.study.results import MeasuredPoint, Results


def page(
    scale: Scale,
    results: Mapping[FigureName, Results],
    pictures: Mapping[FigureName, Sequence[Path]],
) -> str:
    grids = pictures.get("smoothgrad", ())
    names = [*results, *(["smoothgrad"] if grids else [])]
    commands = [f"relumine reproduce {name} --scale {scale.name}" for name in names]
    lines = [
        f"# The paper's experiments, scale {scale.name}",
        "",
        _wrapped(f"{scale.about[0].upper()}{scale.about[1:]}."),
        "",
    ]
    lines += _claims(results, scale)
    for name, known in results.items():
        lines += [f"## {known.figure.title}", "", *_pictures(pictures.get(name, ()), f"{name}.csv", f"{name}.jsonl")]
        told = [f"{panel.title} {_percent(known.target_accuracies(panel))}" for panel in known.figure.panels]
        lines += [_wrapped(f"Accuracy of the targets: {'; '.join(told)}."), "", *_exact(known)]
    if grids:
        lines += ["## Saliency maps by SmoothGrad", "", *_pictures(grids, "smoothgrad.jsonl")]
    lines += ["## Made by", "", "```sh", *commands, "```", "", *_provenance(results)]
    return "\n".join([*lines, *_failures(results)]).rstrip() + "\n"


def numbers(results: Results) -> str:
    """The points of a figure's curves, as CSV."""
    text = StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("panel", "target", "curve", "numbers per query", *(field.name for field in fields(MeasuredPoint))))
    for panel, curve in product(results.figure.panels, results.figure.curves):
        about = panel.name, results.target_accuracy(panel), curve.label, results.floats_per_query(panel, curve)
        table.writerows((*about, *astuple(point)) for point in results.points(panel, curve))
    return text.getvalue()


def _provenance(results: Mapping[FigureName, Results]) -> list[str]:
    rows = {row.experiment.key: row for known in results.values() for row in known.rows}
    if not rows:
        return []
    made = [row.provenance for row in rows.values()]
    versions = sorted({", ".join(f"{name} {number}" for name, number in each.versions.items()) for each in made})
    hours = sum(each.seconds for each in made) / 3600
    facts = f"{len(rows):,} rows, {hours:.1f} hours of one core. {'; '.join(versions)}. Each row names its commit."
    return [_wrapped(facts), ""]


def _claims(results: Mapping[FigureName, Results], scale: Scale) -> list[str]:
    """The table of claims: "same" within half a decade of queries or one point of accuracy."""
    found = findings(results)
    if not found:
        return []
    mark = "**{}**" if scale.faithful else "({})"
    table = [
        (claim.figure, claim.subject, claim.says, finding.ours, f"{finding.seeds}", mark.format(finding.verdict))
        for claim, finding in found
    ]
    short = [claim for claim, finding in found if finding.verdict == "short" and claim.why_short]
    reasons = [_item(f"{claim.subject}, {claim.says}: {claim.why_short}") for claim in short] if scale.faithful else []
    note = (
        "*same*: within half a decade of queries, or one point of accuracy. *open*: these rows cannot tell. Where the "
        "paper names no accuracy, queries are counted until 95 % of the target's accuracy is reached, or the highest "
        "accuracy that both kinds of queries reach. *seeds*: of the point with the fewest."
    )
    if not scale.faithful:
        note += " In brackets, because other data stand for the paper's."
    told = ["Why some are short:", "", *reasons, ""] if reasons else []
    header = ("figure", "network", "the paper", "here: mean (lowest–highest seed)", "seeds", "verdict")
    return ["## Claims", "", *_table(header, table), "", _wrapped(note), "", *told]


def _percent(accuracies: Sequence[float]) -> str:
    if len(accuracies) < 2:
        return "".join(f"{100 * accuracy:.1f} %" for accuracy in accuracies) or "unknown"
    # Those of one recipe are so close that a digit more tells them apart.
    first, *others = (f"{100 * accuracy:.2f} %" for accuracy in accuracies)
    return f"{first} (trained anew for some rows: {', '.join(others)})"


def _exact(results: Results) -> list[str]:
    found = [(panel, mark, row) for panel in results.figure.panels for mark, row in results.marks(panel)]
    if not found:
        return []
    header = ("target", "what", "outcome", "gradient queries", "value queries", "numbers returned")
    counts = ("gradient_queries", "value_queries", "floats")
    rows = [
        (panel.title, mark.label, row.outcome, *(f"{row.spent[name]:,}" for name in counts))
        for panel, mark, row in found
    ]
    return ["Without a student, verification included:", "", *_table(header, rows), ""]


def _pictures(paths: Sequence[Path], *data: str) -> list[str]:
    """The pictures of a figure, and the files with what they show."""
    drawn = [f"![{path.stem}]({path.as_posix()})\n" for path in paths if path.suffix == ".png"]
    files = [path.with_name(name) for path in paths[:1] for name in data]
    links = ", ".join(f"[{path.name}]({path.as_posix()})" for path in files)
    return [*drawn, *([f"Data: {links}.\n"] if links else [])]


def _failures(results: Mapping[FigureName, Results]) -> list[str]:
    failed = {row.experiment.key: row for known in results.values() for row in known.rows if row.failed}
    if not failed:
        return []
    return ["## Failed", "", *(_item(f"{row.experiment}: {row.error}") for row in failed.values())]


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> str:
    return _wrapped(f"- {text}", "  ")


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    marked = ["|".join(("", *(f" {cell} " for cell in row), "")) for row in (header, *rows)]
    return [marked[0], "|" + "---|" * len(header), *marked[1:]]
