"""A picture of the paper's Algorithm 1a at work: the cells, the line, the kinks, and every question asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relumine.oracle.base import Answer, Array, Offer, Oracle
from relumine.oracle.metered import Metered
from relumine.reconstruct.paper import Kink, Line, PaperTwoLayer, recover_z

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _ACCENT, _PAPER = "#1f2a37", "#6b7785", "#c8324a", "#ffffff"
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "text.color": _INK,
    "axes.labelcolor": _QUIET,
    "axes.edgecolor": _QUIET,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "svg.hashsalt": "relumine",  # the same picture is the same file
}
_PIXELS = (480, 1200)


class Recorder:
    """An oracle that remembers where gradients were asked."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.asked: list[Array] = []

    @property
    def offer(self) -> Offer:
        """The offer of the oracle inside."""
        return self._oracle.offer

    def __call__(self, inputs: Array, *, gradients: bool) -> Answer:
        if gradients:
            self.asked.extend(inputs)
        return self._oracle(inputs, gradients=gradients)


@dataclass(frozen=True, eq=False)
class Search:
    """One run of Algorithm 1a on the line u + t·v: at which t it asked, in order, and the kinks it found."""

    u: Array
    v: Array
    asked: Array
    kinks: list[Kink]

    @classmethod
    def run(cls, oracle: Oracle, method: PaperTwoLayer, seed: int) -> "Search":
        """The line and the questions that ``method`` has with this seed."""
        recorder = Recorder(oracle)
        line = Line(Metered(recorder), method.search(oracle.offer), np.random.default_rng(seed))
        kinks = recover_z(line, method.hidden)
        points = np.array(recorder.asked)
        first, last = points[:2]  # the search begins with the ends, t = ∓l
        u, v = (first + last) / 2, (last - first) / (2 * line.search.l)
        return cls(u, v, (points - u) @ v / (v @ v), kinks)

    @property
    def places(self) -> Array:
        """t of every kink, from left to right."""
        return np.array([(kink.left.t + kink.right.t) / 2 for kink in self.kinks])

    @property
    def jumps(self) -> Array:
        """By what the gradient changes at every kink: ± w_i·A_i."""
        return np.array([kink.jump for kink in self.kinks])


def draw_search(oracle: Oracle, method: PaperTwoLayer, out: Path, seed: int, remark: str = "") -> list[Path]:
    """Run Algorithm 1a and write ``search.png`` and ``search.svg`` to the folder ``out``."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    search = Search.run(oracle, method, seed)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "search.png", out / "search.svg"]
    with mpl.rc_context(_STYLE):
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12)
        figure = Figure(figsize=(10, 8.2), facecolor=_PAPER, layout=layout)
        above, below = figure.subplots(2, 1, height_ratios=(4, 3))
        _draw_slice(above, search)
        _draw_questions(below, search, remark)
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], dpi=160, metadata={"Date": None})
    return paths


def _draw_slice(axes: "Axes", search: Search) -> None:
    """Cells in the plane u + t·v + s·w: without biases unit i turns on or off where jump_i·x changes sign."""
    left, right = _view(search.places)
    height = (right - left) / 2 * _PIXELS[0] / _PIXELS[1]
    at_u, per_t, per_s = (search.jumps @ direction for direction in (search.u, search.v, _second_direction(search)))
    t, s = np.linspace(left, right, _PIXELS[1]), np.linspace(-height, height, _PIXELS[0])
    sides = at_u + t[None, :, None] * per_t + s[:, None, None] * per_s
    slopes = ((sides * np.sign(per_t) > 0) * per_t).sum(axis=2)
    ranks = np.unique(slopes.round(9), return_inverse=True)[1].reshape(slopes.shape)  # every cell gets its own colour
    box = (left, right, -height, height)
    axes.imshow(ranks, extent=box, origin="lower", cmap="YlGnBu", alpha=0.8, interpolation="nearest", aspect="auto")
    ends = np.array([-height, height])
    for crossing, tilt in zip(-at_u / per_t, -per_s / per_t, strict=True):
        axes.plot(crossing + tilt * ends, ends, color=_PAPER, linewidth=1.1, zorder=2)
    axes.axhline(0, color=_INK, linewidth=1.3, zorder=3)
    axes.plot(search.asked, 0 * search.asked, "|", color=_INK, markersize=10, markeredgewidth=0.7, zorder=4)
    axes.plot(search.places, 0 * search.places, "o", color=_PAPER, mec=_ACCENT, mew=2, markersize=8, zorder=5)
    axes.set(xlim=(left, right), ylim=(-height, height), yticks=[], xlabel="t, the position on the line u + t·v")
    axes.spines[:].set_visible(False)
    _write_title(
        axes,
        "The paper’s search at work: a random line through the cells of a ReLU network",
        "Within a cell the gradient is constant (colour: its part along the line). Ticks: where it was asked. "
        f"Rings: kinks found, {_inside(search.places, left, right)} of {len(search.places)} in view.",
    )


def _draw_questions(axes: "Axes", search: Search, remark: str) -> None:
    """Question number against its place on the line, from end to end."""
    numbers = np.arange(1, len(search.asked) + 1)
    each = len(numbers) / len(search.places)
    found = 1 + np.abs(search.asked - search.places[:, None]).argmin(axis=1)
    axes.vlines(search.places, 0, found, color=_ACCENT, linewidth=0.8, alpha=0.45, zorder=1)
    axes.plot(search.asked, numbers, color=_QUIET, linewidth=0.35, alpha=0.6, zorder=2)
    axes.plot(search.asked, numbers, ".", color=_INK, markersize=3, zorder=3)
    axes.set_xscale("asinh", linear_width=0.5)
    axes.set_xticks([-100, -10, -1, 0, 1, 10, 100], ["−100", "−10", "−1", "0", "1", "10", "100"])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set(ylim=(1.02 * len(numbers), -0.02 * len(numbers)), ylabel="question", xlabel="t, from end to end")
    axes.spines[["top", "right"]].set_visible(False)
    axes.text(0.012, 0.07, remark, transform=axes.transAxes, color=_ACCENT, fontweight="bold", linespacing=1.6)
    _write_title(
        axes,
        f"Its {len(numbers):,} questions in order, top to bottom",
        f"Each kink is found by halving what is left of the line: {each:.0f} gradients each.",
    )


def _write_title(axes: "Axes", title: str, subtitle: str) -> None:
    axes.set_title(f"{title}\n", loc="left", fontsize=13, fontweight="bold")
    note = axes.annotate(subtitle, (0, 1), (0, 8), xycoords="axes fraction", textcoords="offset points", color=_QUIET)
    note.set_in_layout(False)


def _second_direction(search: Search) -> Array:
    """w, across v, along which the boundaries differ most: in a random plane many look parallel."""
    units = search.jumps / np.linalg.norm(search.jumps, axis=1, keepdims=True)
    v = search.v / np.linalg.norm(search.v)
    w: Array = np.linalg.svd(units - np.outer(units @ v, v))[2][0]
    # As long as lets the boundaries stand at 45° on average.
    scaled: Array = w / np.median(np.abs((search.jumps @ w) / (search.jumps @ search.v)))
    return scaled


def _view(places: Array) -> tuple[float, float]:
    """From where to where on the line: most of the kinks. The farthest can be very far."""
    low, high = np.quantile(places, (0.15, 0.85))
    margin = 0.15 * (high - low) + 0.1
    return float(low - margin), float(high + margin)


def _inside(places: Array, left: float, right: float) -> int:
    return int(((places > left) & (places < right)).sum())
