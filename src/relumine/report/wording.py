"""Numbers and names as a reader sees them."""

import math
import unicodedata
from collections.abc import Callable
from datetime import datetime

from relumine.audit.result import About, Spread
from relumine.text import NOTHING, count, per_cent

# Longest name from outside that is written out; the result file has all of it.
_LONGEST = 240

# Characters that are not seen, or that change how their neighbours are: control, direction, half a character, …
_UNSEEN = ("Cc", "Cf", "Cs", "Co")
# … but not those that a text may need: line ends, and joiners of letters and pictures.
_NEEDED = "\n\t\u00ad\u200c\u200d"


def legible(text: str) -> str:
    """A text from outside without characters that hide, reorder or cannot be written; line ends stay."""
    return "".join("\ufffd" if unicodedata.category(c) in _UNSEEN and c not in _NEEDED else c for c in text)


def short(text: str, longest: int = _LONGEST) -> str:
    """The text, cut where nobody would read on."""
    return text if len(text) <= longest else f"{text[: longest - 1]}… ({len(text):,} characters)"


def label(text: str, longest: int = 26) -> str:
    """A name that has to fit beside a point."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def decimal(number: float | None, form: str = ".2f") -> str:
    """A plain number with two decimals."""
    if number is None:
        return NOTHING
    return f"{number:{form}}" if math.isfinite(number) else "not a number"


def scientific(number: float | None) -> str:
    """A small number: 2.5e-14."""
    return decimal(number, ".1e")


def between(spread: Spread | None, form: Callable[[float | None], str] = count) -> str:
    """From where to where over seeds; empty where there is no spread to speak of."""
    if spread is None or spread.seeds < 2 or spread.low == spread.high:
        return ""
    return f"{form(spread.low).removesuffix(' %')} – {form(spread.high)}"


def with_spread(spread: Spread | None, form: Callable[[float | None], str] = per_cent) -> str:
    """The mean, and in brackets from where to where."""
    if spread is None:
        return NOTHING
    around = between(spread, form)
    return f"{form(spread.mean)} ({around})" if around else form(spread.mean)


def money(queries: float, price: float) -> str:
    """What this many queries cost at a price per 1,000."""
    cost = queries * price / 1000
    if not math.isfinite(cost):
        return "not a number"
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:,.2f}" if cost >= 0.01 or cost == 0 else "< 0.01"


def moment(text: str) -> str:
    """A point in time: 2 March 2026, 09:41 UTC; a text that is none stays as it is."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    return f"{when.day} {when:%B %Y, %H:%M} {when.tzname() or ''}".strip()


def headline(verdict: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    first, end, rest = verdict.partition(". ")
    return first + end.strip(), rest


def agrees(about: About) -> str:
    """What a clone does that agrees with the target; numbers cannot be the same class."""
    return "comes close to the target" if about.regression else "gives the target's class"
