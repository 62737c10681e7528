"""Numbers and errors as words, the same in messages, tables and reports."""

import math


def one_line(error: BaseException, *, named: bool = True) -> str:
    """An error of another library in one line, with the name of its class unless that is said already."""
    lines = str(error).strip().splitlines()
    name = type(error).__name__
    return f"{name}: {lines[0]}" if lines and named else lines[0] if lines else name


def percent(share: float) -> str:
    """``95.0 %``."""
    return f"{100 * share:.1f} %"


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
