"""The tables and figures of docs/deep.md, from the rows of benchmarks/deep.py."""

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
    for name, group in rows.items():
        page = _replaced(page, name, _table(group))
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
