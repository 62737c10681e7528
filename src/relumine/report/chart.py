"""Charts: what is drawn, and where. Every place is computed here; the script adds pointing and the keyboard."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    """One way to measure: what stands beside it, and where values lie between 0 and 1.

    beyond:    what is said of values that were not reached, drawn at the axis' end; "" where there are none
    reference: a value to compare with, drawn as a line that says ``reference_text``
    """

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
    """A point: its value across, and (mean, low, high) up; not drawn where one of them is None or not a number.

    text:    everything known of it, for pointers and screen readers
    caption: what stands beside it
    """

    across: float | None
    up: tuple[float, float, float] | None
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
    """What is drawn."""

    name: str
    across: Axis
    up: Axis
    series: tuple[Series, ...]

    @property
    def layouts(self) -> "tuple[Drawing, Drawing]":
        """For screens and paper, and for phones."""
        return Drawing(self, "wide", 1000, 460), Drawing(self, "narrow", 360, 380)


class Caption(NamedTuple):
    """Where a caption stands, seen from its point, and which end is there."""

    dx: float
    dy: float
    anchor: str


class Tick(NamedTuple):
    """A line of the grid and its number."""

    at: float
    text: str


# A point in its place: x, and y of mean, low and high.
Spot = tuple[float, float, float, float]


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
        return 96 if self.chart.up.beyond else 58

    def x(self, place: float) -> float:
        """From a place on the axis across."""
        return round(self.left + place * (self.width - self.left - self.right), 1)

    def y(self, place: float) -> float:
        """From a place on the axis upwards."""
        return round(self.height - self.bottom - place * (self.height - self.bottom - self.top), 1)

    @property
    def ticks_across(self) -> list[Tick]:
        """The grid's upright lines; fewer on a phone, where their numbers would meet."""
        axis, room = self.chart.across, 60 if self.size == "narrow" else 50
        return list(_apart([Tick(self.x(axis.place(value)), text) for value, text in axis.ticks], room))

    @property
    def ticks_up(self) -> list[Tick]:
        """The grid's level lines."""
        axis = self.chart.up
        ticks = [Tick(self.y(axis.place(value)), text) for value, text in axis.ticks]
        return [*_apart(ticks, 14), *([Tick(self.y(1.0), axis.beyond)] if axis.beyond else [])]

    @property
    def series(self) -> "Iterator[Drawn]":
        """What is drawn; captions where they touch no point and no other caption, or they are left out."""
        spots = [[self._spot(mark) for mark in one.marks] for one in self.chart.series]
        taken = [_Box(x - 6, y - 6, x + 6, y + 6) for row in spots for spot in row if spot for x, y, *_ in [spot]]
        for one, row in zip(self.chart.series, spots, strict=True):
            captions = [self._free(m.caption, s, taken) if s else None for m, s in zip(one.marks, row, strict=True)]
            yield Drawn(one, row, captions)

    def _spot(self, mark: Mark) -> Spot | None:
        values = (mark.across, *(mark.up or (None,)))
        known = [value for value in values if value is not None and not math.isnan(value)]
        if len(known) < len(values):
            return None
        across, *up = known
        mean, low, high = (self.y(self.chart.up.place(value)) for value in up)
        return self.x(self.chart.across.place(across)), mean, low, high

    def _free(self, text: str, spot: Spot, taken: "list[_Box]") -> Caption | None:
        x, y, wide = spot[0], spot[1], 7 * len(text)
        for caption in _AROUND if text else ():
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


class _Box(NamedTuple):
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
    spots: Sequence[Spot | None]
    captions: Sequence[Caption | None]

    @property
    def line(self) -> str:
        """Through the means."""
        return _path([(x, mean) for x, mean, _, _ in filter(None, self.spots)])

    @property
    def band(self) -> str:
        """From the lowest to the highest of the seeds."""
        there = list(filter(None, self.spots))
        return _path([(x, low) for x, _, low, _ in there] + [(x, high) for x, _, _, high in reversed(there)]) + "Z"

    @property
    def marks(self) -> "Iterator[tuple[Mark, Spot, Caption | None]]":
        """Each point that has a place, and its caption's."""
        for mark, spot, caption in zip(self.series.marks, self.spots, self.captions, strict=True):
            if spot is not None:
                yield mark, spot, caption


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
