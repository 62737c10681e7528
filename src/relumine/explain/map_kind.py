"""MapKind: what a map shows of the gradient.

Explanations, defences and the preflight say it; adapters make gradients of it again, students are compared by it, and
attacks are chosen by it. Endpoint files, probe results and command lines name kinds by words: here and nowhere else.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from relumine.errors import MisuseError

# Explanations that a torch module can be asked for.
ExplanationName = Literal["gradient", "absolute-gradient", "input-times-gradient", "smoothgrad", "integrated-gradients"]


@dataclass(frozen=True)
class Smoothing:
    """A mean over Gaussian noise in the input. How much noise is no part of the kind: None where nobody says."""

    sigma: float | None = field(default=None, compare=False)
    samples: int = field(default=10, compare=False)


@dataclass(frozen=True)
class MapKind:
    """What a map is, beginning with the gradient.

    smoothing:   the mean of gradients around the input
    path:        the mean of gradients on the way from a baseline to the input
    times_input: multiplied by the input, coordinate by coordinate
    magnitudes:  of each coordinate its magnitude only
    squared:     magnitudes are squared
    signs:       of each coordinate its sign only
    scaled:      each map by a factor of its own, which is not told
    masked:      only the largest coordinates; 0 stands for the others, which are not larger
    quantised:   coordinates are rounded to the few shades of a picture
    """

    smoothing: Smoothing | None = None
    path: bool = False
    times_input: bool = False
    magnitudes: bool = False
    squared: bool = False
    signs: bool = False
    scaled: bool = False
    masked: bool = False
    quantised: bool = False

    @property
    def word(self) -> str | None:
        """By which files know it; None of a kind that none can name."""
        return next((word for word, kind in WORDS.items() if kind == self), None)

    @property
    def invertible(self) -> bool:
        """Whether adapters make gradients of such maps."""
        return self in ADAPTABLE.values()

    @property
    def linear(self) -> bool:
        """Whether combinations of maps may be compared in place of maps."""
        return not (self.partial or self.masked)

    @property
    def partial(self) -> bool:
        """Whether maps have lost signs, sizes or scale, so that values have to find them."""
        return self.magnitudes or self.signs or self.scaled

    def smoothed_by(self, sigma: float) -> "MapKind":
        """The same with this standard deviation of the noise, where it is smoothed and nobody says by how much."""
        if self.smoothing is None or self.smoothing.sigma is not None:
            return self
        return replace(self, smoothing=replace(self.smoothing, sigma=sigma))

    def __str__(self) -> str:
        plain = "input × gradient" if self.times_input else "gradient"
        if self.magnitudes:
            plain = f"{plain}²" if self.squared else f"|{plain}|"
        return f"{'smoothed ' if self.smoothing else ''}{plain}{', scale lost' if self.scaled else ''}"


GRADIENT = MapKind()

# What a preflight tells, and adapters make gradients of.
ADAPTABLE: dict[str, MapKind] = {
    "gradient": GRADIENT,
    "input-times-gradient": MapKind(times_input=True),
    "absolute": MapKind(magnitudes=True),
    "squared": MapKind(magnitudes=True, squared=True),
    "normalised": MapKind(scaled=True),
    "normalised-input-times-gradient": MapKind(times_input=True, scaled=True),
    "normalised-absolute": MapKind(magnitudes=True, scaled=True),
    "smoothed": MapKind(Smoothing()),
    "smoothed-absolute": MapKind(Smoothing(), magnitudes=True),
    "smoothed-squared": MapKind(Smoothing(), magnitudes=True, squared=True),
}
WORDS = ADAPTABLE | {
    "integrated-gradients": MapKind(path=True, times_input=True),
    "absolute-gradient": MapKind(magnitudes=True),
    "smoothgrad": MapKind(Smoothing()),
    "none": GRADIENT,  # what is shown of none does not matter
}


def map_kind(word: str) -> MapKind:
    """The kind that a word of an endpoint file, of a preflight or of ``relumine serve --explain`` names."""
    if word not in WORDS:
        raise MisuseError(f"explanation: expected one of {', '.join(WORDS)}, got {word!r}")
    return WORDS[word]
