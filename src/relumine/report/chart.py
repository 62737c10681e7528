"""Charts: what is drawn, and where. Every place is computed here, for each choice of axes; the script looks it up."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

# One glyph per series besides its colour, as paths around the origin: circle, square, triangle, diamond, cross, …
GLYPHS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5.4L5 3.6H-5Z",
    "M0 -5.6L5.6 0L0 5.6L-5.6 0Z",
    "M-1.8 -5H1.8V-1.8H5V1.8H1.8V5H-1.8V1.8H-5V-1.8H-1.8Z",
    "M0 5.4L-5 -3.6H5Z",
    "M0 -5.2L5 -1.4L3 4.4H-3L-5 -1.4Z",
    "M-5 -2.9L0 -5.8L5 -2.9V2.9L0 5.8L-5 2.9Z",
)


@dataclass(frozen=True)
class Axis:
    """One way to measure: its name, what stands beside it, and where values lie between 0 and 1.

    beyond:    what is said of values that were not reached, drawn at the axis' end; "" where there are none
    reference: a value to compare with, drawn as a line that says ``reference_text``
    """

    name: str
    switch: str
    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    logarithmic: bool = False
    beyond: str = ""
    reference: float | None = None
    reference_text: str = ""

    def place(self, value: float) -> float:
        """0 at the axis' begin, 1 at its end."""
        if self.beyond and value == math.inf:
            return 1.0
        ends = [math.log10(v) if self.logarithmic else v for v in (self.low, self.high)]
        at = math.log10(max(value, self.low)) if self.logarithmic else value
        share = (at - ends[0]) / (ends[1] - ends[0])
        return min(max(share, 0.0), 1.0) * (0.86 if self.beyond else 1.0)


@dataclass(frozen=True)
class Mark:
    """A point: per axis its value, across with (mean, low, high) up. None where it has none there.

    text:    everything known of it, for pointers and screen readers
    caption: what stands beside it
    """

    across: Mapping[str, float | None]
    up: Mapping[str, tuple[float, float, float] | None]
    text: str
    ringed: bool = False
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one kind. ``look`` chooses colour and glyph, ``lined`` joins the points, ``shown`` is how it begins."""

    name: str
    look: int
    marks: tuple[Mark, ...]
    lined: bool = True
    dashed: bool = False
    shown: bool = True

    @property
    def glyph(self) -> str:
        """The path of its points."""
        return GLYPHS[self.look % len(GLYPHS)]


@dataclass(frozen=True)
class Chart:
    """What is drawn; the first axes are seen first."""

    name: str
    across: tuple[Axis, ...]
    up: tuple[Axis, ...]
    series: tuple[Series, ...]

    @cached_property
    def layouts(self) -> "tuple[Drawing, Drawing]":
        """For screens and paper, and for phones."""
        return Drawing(self, "wide", 1000, 460), Drawing(self, "narrow", 360, 380)

    @property
    def places(self) -> dict[str, Any]:
        """What the script looks up: numbers only."""
        return {drawing.size: drawing.places for drawing in self.layouts}


@dataclass(frozen=True)
class Caption:
    """Where a caption stands, seen from its point, and which end is there."""

    dx: float
    dy: float
    anchor: str


@dataclass(frozen=True)
class Tick:
    """A line of the grid and its number."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart at one size, in its picture's own units."""

    chart: Chart
    size: str
    width: float
    height: float
    right: float = 26
    top: float = 40
    bottom: float = 50

    @property
    def left(self) -> float:
        """Room for the numbers of the axis upwards."""
        return 96 if any(axis.beyond for axis in self.chart.up) else 58

    def x(self, place: float) -> float:
        """From a place on the axis across."""
        return round(self.left + place * (self.width - self.left - self.right), 1)

    def y(self, place: float) -> float:
        """From a place on the axis upwards."""
        return round(self.height - self.bottom - place * (self.height - self.bottom - self.top), 1)

    def ticks_across(self, axis: Axis) -> list[Tick]:
        """The grid's upright lines; fewer on a phone, where their numbers would meet."""
        room = 60 if self.size == "narrow" else 50
        return list(_apart([Tick(self.x(axis.place(value)), text) for value, text in axis.ticks], room))

    def ticks_up(self, axis: Axis) -> list[Tick]:
        """The grid's level lines."""
        ticks = [Tick(self.y(axis.place(value)), text) for value, text in axis.ticks]
        return [*_apart(ticks, 14), *([Tick(self.y(1.0), axis.beyond)] if axis.beyond else [])]

    @property
    def series(self) -> "list[Drawn]":
        """What is drawn with the first axes."""
        across, up = self.chart.across[0].name, self.chart.up[0].name
        return [
            Drawn(one, drawn["x"][across], drawn["y"][up], drawn["captions"].get(f"{across}/{up}", []))
            for one, drawn in zip(self.chart.series, self.places, strict=True)
        ]

    @cached_property
    def places(self) -> list[dict[str, Any]]:
        """Of each series: x by axis, [mean, low, high] by axis, and captions by both."""
        places = [
            {
                "x": {axis.name: [self._x(axis, mark) for mark in one.marks] for axis in self.chart.across},
                "y": {axis.name: [self._y(axis, mark) for mark in one.marks] for axis in self.chart.up},
                "captions": {},
            }
            for one in self.chart.series
        ]
        if any(mark.caption for one in self.chart.series for mark in one.marks):
            for across, up in product(self.chart.across, self.chart.up):
                self._caption(places, across.name, up.name)
        return places

    def _x(self, axis: Axis, mark: Mark) -> float | None:
        value = mark.across.get(axis.name)
        return None if value is None or math.isnan(value) else self.x(axis.place(value))

    def _y(self, axis: Axis, mark: Mark) -> list[float] | None:
        values = mark.up.get(axis.name)
        return None if values is None or any(map(math.isnan, values)) else [self.y(axis.place(v)) for v in values]

    def _caption(self, places: list[dict[str, Any]], across: str, up: str) -> None:
        """Put captions where they touch no point and no other caption; one without room is left out."""
        spots = [
            [
                (x, y[0]) if x is not None and y is not None else None
                for x, y in zip(one["x"][across], one["y"][up], strict=True)
            ]
            for one in places
        ]
        taken = [_Box(x - 6, y - 6, x + 6, y + 6) for row in spots for spot in row if spot for x, y in [spot]]
        for one, series, row in zip(places, self.chart.series, spots, strict=True):
            found: list[list[Any] | None] = []
            for mark, spot in zip(series.marks, row, strict=True):
                caption = self._free(mark.caption, *spot, taken) if spot else None
                found.append([caption.dx, caption.dy, caption.anchor] if caption else None)
            one["captions"][f"{across}/{up}"] = found

    def _free(self, text: str, x: float, y: float, taken: "list[_Box]") -> Caption | None:
        wide = 7 * len(text)
        for caption in _AROUND:
            begin = x + caption.dx - {"start": 0, "middle": wide / 2, "end": wide}[caption.anchor]
            box = _Box(begin, y + caption.dy - 10, begin + wide, y + caption.dy + 3)
            inside = box.left >= self.left and box.right <= self.width and box.top >= 0
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                return caption
        return None


_AROUND = (
    Caption(9, 4, "start"),
    Caption(-9, 4, "end"),
    Caption(0, -10, "middle"),
    Caption(0, 18, "middle"),
    Caption(8, -9, "start"),
    Caption(-8, -9, "end"),
    Caption(8, 16, "start"),
    Caption(-8, 16, "end"),
)


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@dataclass(frozen=True)
class Drawn:
    """A series in its place."""

    series: Series
    xs: Sequence[float | None]
    ys: Sequence[Sequence[float] | None]
    captions: Sequence[Sequence[Any] | None] = field(default=())

    @property
    def line(self) -> str:
        """Through the means."""
        return _path([(x, y[0]) for x, y in self._there])

    @property
    def band(self) -> str:
        """From the lowest to the highest of the seeds."""
        there = list(self._there)
        return _path([(x, y[1]) for x, y in there] + [(x, y[2]) for x, y in reversed(there)]) + "Z" if there else ""

    @property
    def marks(self) -> "Iterator[tuple[Mark, str, Sequence[Any] | None]]":
        """Each point, its place, and its caption's."""
        captions = self.captions or [None] * len(self.xs)
        for mark, x, y, caption in zip(self.series.marks, self.xs, self.ys, captions, strict=True):
            yield mark, "" if x is None or y is None else f"{x:g} {y[0]:g}", caption

    @property
    def _there(self) -> Iterator[tuple[float, Sequence[float]]]:
        return ((x, y) for x, y in zip(self.xs, self.ys, strict=True) if x is not None and y is not None)


def logarithmic(values: Sequence[float]) -> tuple[float, float, tuple[tuple[float, str], ...]]:
    """Begin, end and ticks of a logarithmic axis that holds the values with a little room."""
    positive = [value for value in values if 0 < value < math.inf] or [1.0, 10.0]
    low, high = min(positive) / 1.3, max(positive) * 1.3
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high / low < 300 else (1,)
    step = max(1, math.ceil(len(powers) / 9))
    ticks = [digit * 10.0**power for power in powers[::step] for digit in digits]
    return low, high, tuple((tick, _number(tick)) for tick in ticks if low <= tick <= high)


def _number(value: float) -> str:
    if value < 1:
        return f"{value:g}"
    for unit, name in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if value >= unit:
            return f"{value / unit:,.0f}{name}"
    return f"{value:,.0f}"


def _apart(ticks: list[Tick], room: float) -> Iterator[Tick]:
    """Ticks whose texts do not meet: a text is left out where the one before is too close."""
    last = -math.inf
    for tick in ticks:
        close = abs(tick.at - last) < room
        yield Tick(tick.at, "" if close else tick.text)
        last = last if close else tick.at


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""
