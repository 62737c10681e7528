"""Numbers and errors as words, the same in messages, tables and reports."""

import math

# What stands where nothing is known.
NOTHING = "—"


def one_line(error: BaseException, *, named: bool = True) -> str:
    """An error of another library in one line, with the name of its class unless that is said already."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines and named else lines[0] if lines else name


def percent(share: float) -> str:
    """``95.0 %``."""
    return f"{100 * share:.1f} %"


def per_cent(share: float | None) -> str:
    """``95 %``, with one decimal where there is one; nothing but all is called 100 %, nothing but nothing 0 %."""
    if share is None:
        return NOTHING
    if not math.isfinite(share):
        return "not a number"
    if 0 < share < 1:
        share = min(max(share, 0.001), 0.999)
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def count(number: float | None) -> str:
    """A number of queries or floats: 1,234; small means keep a decimal."""
    if number is None:
        return NOTHING
    if not math.isfinite(number):
        return "not a number" if math.isnan(number) else "∞"
    return f"{number:,.1f}" if number < 10 and number != round(number) else f"{number:,.0f}"


def plural(number: int, one: str, many: str = "") -> str:
    """``3 seeds``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """``2 min 3 s``."""
    if not math.isfinite(seconds):
        return "not a number"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
