"""The tables and figures of docs/deep.md, from the rows of benchmarks/deep.py."""

import textwrap
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "docs" / "deep.md"
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"

Row = dict[str, Any]


def write(rows: dict[str, list[Row]]) -> None:
    """Replace what stands between the page's markers, and draw the figures beside it."""
    page = PAGE.read_text()
    for name in ("patterns", "unseen", "trained_single", "networks", "fresh", "trained", "expanding", "single"):
        page = _replaced(page, name, _table(rows[name]))
    page = _replaced(page, "growth", _growth(rows["depth"], rows["width"]))
    PAGE.write_text(page)
    draw_slice(PAGE.with_name("deep-slice.png"))
    draw_follow(PAGE.with_name("deep-follow.png"))


def _replaced(page: str, name: str, text: str) -> str:
    before, _, rest = page.partition(BEGIN.format(name))
    _, _, after = rest.partition(END.format(name))
    return f"{before}{BEGIN.format(name)}\n{text}\n{END.format(name)}{after}"


def _grouped(rows: list[Row]) -> dict[str, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        single = row["dtype"] == "float32"
        name = str(row["widths"]) + " float32" * single + " probabilities" * (row.get("values") == "probabilities")
        groups[name].append(row)
    return groups


def _units(widths: str) -> int:
    return sum(map(int, widths.split("-")[1:-1]))


def _table(rows: list[Row]) -> str:
    if not rows:
        return "Not measured yet."
    lines = [
        "| network | recovered | wrong but called recovered | gradient queries per unit, mean | all queries per unit, "
        "mean (largest) | largest error | seconds outside the oracle, mean (largest) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, group in _grouped(rows).items():
        widths = name.split()[0]
        exact = 1e-8 if group[0]["dtype"] == "float64" else 1e-3
        units = _units(widths)
        good = [row for row in group if row["outcome"] == "RECOVERED"]
        asked = [(row["gradient_queries"] + row["value_queries"]) / units for row in group]
        seconds = [row["seconds"] - row["oracle_seconds"] for row in group]
        lines.append(
            f"| {name} | {len(good)} of {len(group)} | {sum(row['error'] > exact for row in good)} | "
            f"{mean(row['gradient_queries'] / units for row in group):.1f} | {mean(asked):.1f} ({max(asked):.1f}) | "
            f"{max((row['error'] for row in good), default=float('nan')):.0e} | "
            f"{mean(seconds):.1f} ({max(seconds):.1f}) |"
        )
    return "\n".join(lines)


def _growth(depth: list[Row], width: list[Row]) -> str:
    """Queries of the recovered runs against the number of units, with an exponent fitted on logarithms."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    lines = [
        "| networks | recovered | units | gradient queries, mean | all queries, mean |",
        "|---|---|---|---|---|",
    ]
    fitted = []
    for axis, (name, rows) in zip(figure.subplots(1, 2), {"depth": depth, "width": width}.items(), strict=True):
        units, gradients, everything = [], [], []
        for widths, group in _grouped(rows).items():
            good = [row for row in group if row["outcome"] == "RECOVERED"]
            lines.append(f"| {widths} | {len(good)} of {len(group)} | {_units(widths)} | " + _means(good) + " |")
            units += [_units(widths)] * len(good)
            gradients += [row["gradient_queries"] for row in good]
            everything += [row["gradient_queries"] + row["value_queries"] for row in good]
        axis.loglog(units, gradients, "o", ms=4, label="gradient queries")
        axis.loglog(units, everything, "x", ms=4, label="all queries")
        for numbers, kind in ((gradients, "gradient queries"), (everything, "all queries")):
            if len(set(units)) > 1:
                slope, error, offset = _exponent(units, numbers)
                ends = np.array([min(units), max(units)])
                axis.loglog(ends, np.exp(offset) * ends**slope, "-", lw=1, color="grey")
                fitted.append(f"{kind} grow as units^({slope:.2f} ± {error:.2f}) with {name}")
        axis.set(xlabel="hidden units", ylabel="queries", title=f"growing {name}")
        axis.set_xticks(sorted(set(units)), sorted(set(units)), minor=False)
        axis.set_xticks([], minor=True)
        axis.legend(fontsize=8)
    figure.savefig(PAGE.with_name("deep-growth.png"), dpi=120)
    fits = f"Fitted over the recovered runs, with standard errors: {'; '.join(fitted)}."
    return "\n".join([*lines, "", *textwrap.wrap(fits, 120)])


def _exponent(units: list[int], numbers: list[int]) -> tuple[float, float, float]:
    """The slope of a line through the logarithms, its standard error, and the offset."""
    x, y = np.log(units), np.log(numbers)
    slope, offset = np.polyfit(x, y, 1)
    rest = y - slope * x - offset
    return slope, float(np.sqrt(rest @ rest / max(len(x) - 2, 1) / ((x - x.mean()) ** 2).sum())), offset


def _means(good: list[Row]) -> str:
    if not good:
        return "– | –"
    gradients = mean(row["gradient_queries"] for row in good)
    return f"{gradients:.0f} | {gradients + mean(row['value_queries'] for row in good):.0f}"


def draw_slice(path: Path) -> None:
    """The boundaries of every unit of a random 12-8-6-3 network on a plane through the input space."""
    rng = np.random.default_rng(5)
    sizes = (12, 8, 6, 3)
    plane = np.linalg.qr(rng.standard_normal((12, 2)))[0].T * 3
    grid = np.linspace(-1, 1, 500)
    x, y = np.meshgrid(grid, grid)
    signal = np.stack([x.ravel(), y.ravel()], axis=1) @ plane + 0.3 * rng.standard_normal(12)
    figure = Figure(figsize=(5.2, 5), layout="constrained")
    axis = figure.subplots()
    for (wide, narrow), colour in zip(pairwise(sizes[:-1]), ("tab:blue", "tab:red"), strict=True):
        weight, bias = rng.standard_normal((narrow, wide)) / np.sqrt(wide), 0.5 * rng.standard_normal(narrow)
        signal = signal @ weight.T + bias
        for unit in signal.T:
            if unit.min() < 0 < unit.max():
                axis.contour(x, y, unit.reshape(x.shape), levels=[0], colors=colour, linewidths=1.2)
        signal = np.maximum(signal, 0)
    axis.plot([], [], color="tab:blue", label="first layer: straight")
    axis.plot([], [], color="tab:red", label="second layer: bends where it meets the first")
    axis.legend(loc="upper left", fontsize=8)
    axis.set(xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=120)


def draw_follow(path: Path) -> None:
    """One second-layer boundary of a network with two inputs, and its normals between the boundaries it crosses."""
    rng = np.random.default_rng(12)
    rows, biases = rng.standard_normal((7, 2)), 0.5 * rng.standard_normal(7)
    row = rng.standard_normal(7)
    grid = np.linspace(-2, 2, 600)
    x, y = np.meshgrid(grid, grid)
    signal = np.stack([x.ravel(), y.ravel()], axis=1) @ rows.T + biases
    deeper = (np.maximum(signal, 0) @ row).reshape(x.shape)
    deeper -= np.median(deeper)
    figure = Figure(figsize=(5.2, 5), layout="constrained")
    axis = figure.subplots()
    for unit in signal.T:
        axis.contour(x, y, unit.reshape(x.shape), levels=[0], colors="tab:blue", linewidths=0.8)
    lines = axis.contour(x, y, deeper, levels=[0], colors="tab:red", linewidths=1.8)
    for line in lines.allsegs[0]:
        regions = [tuple(region) for region in (line @ rows.T + biases > 0)]
        starts = [0, *(i for i in range(1, len(line)) if regions[i] != regions[i - 1]), len(line)]
        for first, last in pairwise(starts):
            point = line[(first + last) // 2]
            normal = (np.array(regions[(first + last) // 2]) * row) @ rows
            if last - first > 8:
                axis.annotate("", point + 0.3 * normal / np.linalg.norm(normal), point, arrowprops={"arrowstyle": "->"})
    axis.plot([], [], color="tab:blue", label="7 units, 2 inputs")
    axis.plot([], [], color="tab:red", label="a deeper boundary; arrows: its normals")
    axis.legend(loc="upper left", fontsize=8)
    axis.set(xticks=[], yticks=[], aspect="equal")
    figure.savefig(path, dpi=120)
