"""Drawings: accuracy over queries, one panel per pair of networks, and the appendix's grids of saliency maps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relumine.study.designs import CurveDesign, Panel
from relumine.study.results import Measure, Results
from relumine.study.trial import SIGMAS, Maps
from relumine.text import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Sheet

_INK, _QUIET, _FAINT, _EXACT = "#1f2a37", "#6b7785", "#dfe3e8", "#1b5e20"
# Told apart by colour-blind readers, and by marker in print.
_LOOKS = {
    "membership": ("#6b7785", "o"),
    "membership logits": ("#a9b2bc", "h"),
    "gradient": ("#c8324a", "s"),
    "smoothgrad": ("#e08e0b", "^"),
    "top class": ("#2b6cb0", "D"),
    "probabilities": ("#7b4fa3", "v"),
    "top probability": ("#1b8a6b", "P"),
    "integrated": ("#8a6d3b", "X"),
    "far": ("#e08e0b", "<"),
    "little": ("#2b6cb0", "v"),
    "ordinary": (_EXACT, "*"),
    "one weight": ("#7b4fa3", "v"),
}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "svg.hashsalt": "relumine",  # the same picture is the same file
}
_COLUMNS = 3


@dataclass(frozen=True)
class View:
    """What is drawn over what; ``name`` is added to the figure's."""

    name: str
    measure: Measure
    label: str
    floats: bool = False


ACCURACY = View("", "test_accuracy", "test accuracy, %")
AGREEMENT = View("-agreement", "agreement", "agreement with the target, %")
FLOATS = View("-floats", "test_accuracy", "test accuracy, %", floats=True)


def draw_curves(results: Results, folder: Path, subtitle: str, *, view: View = ACCURACY) -> list[Path]:
    """Write FIGURE.png and FIGURE.svg."""
    figure = results.figure
    columns = next(n for n in range(_COLUMNS, 0, -1) if len(figure.panels) % n == 0)  # no place stays empty
    lines = len(figure.panels) // columns
    size = (max(3.4 * columns, 6.8), 2.7 * lines + 1.2)
    with _sheet(size) as sheet:
        axes = sheet.subplots(lines, columns, squeeze=False, sharey="row").ravel()
        for panel, ax in zip(figure.panels, axes, strict=True):
            _draw_panel(results, panel, ax, view)
        for ax in axes[::columns]:
            ax.set_ylabel(view.label)
        for ax in axes[-columns:]:
            ax.set_xlabel("numbers returned" if view.floats else "queries")
        known = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        sheet.legend(
            [*known.values()],
            [*known],
            loc="outside lower center",
            ncols=max(columns, 2),
            frameon=False,
        )
        sheet.suptitle(f"{figure.title}\n", fontsize=12.5, x=0.01, ha="left")
        sheet.text(0.01, 1 - 0.36 / size[1], subtitle, fontsize=8.5, color=_QUIET, va="top")
        return _written(sheet, folder / f"{figure.name}{view.name}")


def _draw_panel(results: Results, panel: Panel, ax: "Axes", view: View) -> None:
    for curve in results.figure.curves:
        _draw_curve(results, panel, curve, ax, view)
    target = results.target_accuracy(panel)
    if target is not None and view.measure == "test_accuracy":
        ax.axhline(100 * target, color=_INK, linewidth=0.9, linestyle=(0, (5, 3)), label="target", zorder=1)
    ax.set_xscale("log")
    if not ax.lines:
        ax.text(0.5, 0.5, "not run", color=_QUIET, ha="center", transform=ax.transAxes)
    if not view.floats or not ax.lines:
        first, last = panel.plan.budgets[0], panel.plan.budgets[-1]
        decades = [10**k for k in range(6) if first <= 10**k <= last]
        ax.set_xticks(decades, [f"{decade:,}" for decade in decades])
        ax.set_xlim(first / 1.5, last * 1.5)
    if not view.floats:
        for mark, row in results.marks(panel):
            if row.outcome == "RECOVERED":
                _mark_exact(ax, mark.label, row.spent["gradient_queries"])
    ax.set_ylim(0, 103)
    ax.set_title(panel.title, loc="left")
    ax.grid(color=_FAINT, linewidth=0.7)
    ax.set_axisbelow(True)


def _draw_curve(results: Results, panel: Panel, curve: CurveDesign, ax: "Axes", view: View) -> None:
    points = results.points(panel, curve, view.measure)
    if not points:
        return
    colour, marker = _LOOKS[curve.name]
    each = (results.floats_per_query(panel, curve) or 1) if view.floats else 1
    places = [each * point.budget for point in points]
    means = [100 * point.mean for point in points]
    ax.fill_between(
        places, [100 * p.low for p in points], [100 * p.high for p in points], color=colour, alpha=0.18, linewidth=0
    )
    ax.plot(places, means, color=colour, marker=marker, markersize=4.5, linewidth=1.6, label=curve.label, zorder=2)


def _mark_exact(ax: "Axes", label: str, queries: int) -> None:
    """A line where an exact method has all that it is after, if that is within the panel."""
    if not ax.get_xlim()[0] <= queries <= ax.get_xlim()[1]:
        return
    ax.axvline(queries, color=_EXACT, linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
    left = queries < sqrt(ax.get_xlim()[0] * ax.get_xlim()[1])
    words = ax.annotate(
        f"{label}: {plural(queries, 'gradient query', 'gradient queries')}",
        (queries, 4),
        xytext=(4 if left else -4, 0),
        textcoords="offset points",
        ha="left" if left else "right",
        fontsize=8,
        color=_EXACT,
    )
    words.set_in_layout(False)


def draw_maps(maps: list[Maps], folder: Path) -> list[Path]:
    """Write smoothgrad-NETWORK.png and .svg for each network: an image per line, a σ per column."""
    return [path for one in maps for path in _draw_grid(one, folder)]


def _draw_grid(maps: Maps, folder: Path) -> list[Path]:
    lines, columns = len(maps.images), 1 + len(SIGMAS)
    with _sheet((1.25 * columns, 1.25 * lines + 1.1)) as sheet:
        axes = sheet.subplots(lines, columns)
        for line, image in enumerate(maps.images):
            _show(axes[line, 0], _displayed(image), "gray", 0, 1)
            for column, some in enumerate(maps.maps, start=1):
                _draw_map(axes[line, column], some[line])
        titles = [f"σ = {sigma:g} σ$_D$" if sigma else "gradient" for sigma in SIGMAS]
        for ax, title in zip(axes[0], ["image", *titles], strict=True):
            ax.set_title(title, fontsize=9)
        for ax in axes[:, 1 + SIGMAS.index(maps.wanted.chosen)]:  # a frame around what the paper chose
            ax.spines[:].set(visible=True, color="#c8324a", linewidth=2)
        wanted = maps.wanted
        sheet.suptitle(f"{wanted.title}: SmoothGrad of the top class, N = {wanted.samples}", fontsize=11)
        return _written(sheet, folder / f"smoothgrad-{wanted.target.network}")


def _draw_map(ax: "Axes", values: np.ndarray) -> None:
    """Signed where there is one channel, else the absolute value summed over channels, as in the appendix."""
    if len(values) == 1:
        limit = _limit(np.abs(values))
        _show(ax, values[0], "RdBu_r", -limit, limit)
    else:
        strength = np.abs(values).sum(0)
        _show(ax, strength, "gray", 0, _limit(strength))


def _limit(strength: np.ndarray) -> float:
    """The 99th percentile: single pixels must not decide the scale."""
    return float(np.percentile(strength, 99)) or 1.0


def _displayed(image: np.ndarray) -> np.ndarray:
    scaled = (image - image.min()) / (float(np.ptp(image)) or 1.0)
    return np.asarray(scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0))


def _show(ax: "Axes", values: np.ndarray, colours: str, low: float, high: float) -> None:
    ax.imshow(values, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)


@contextmanager
def _sheet(size: tuple[float, float]) -> "Iterator[Sheet]":
    """A figure that needs no display and no global state of matplotlib's."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[str, Any] = _STYLE
    with rc_context(settings):
        sheet = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(sheet)
        yield sheet


def _written(sheet: "Sheet", stem: Path) -> list[Path]:
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        sheet.savefig(path, dpi=150, metadata=metadata)
        sheet.set_layout_engine("none")  # what the first drawing arranged stays
    return paths
