"""What a person sees of a study: progress while it runs, and the claims when it has ended."""

import time
from collections.abc import Iterable
from types import TracebackType

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from relumine.study.claims import Claim, Finding
from relumine.study.experiment import Row
from relumine.study.runner import Standing

# Where progress goes to a file or a pipe, a line is written no more often than this; failures always.
_SECONDS_BETWEEN_LINES = 10

_COLOURS = {"better": "green", "same": "green", "short": "yellow", "open": "dim"}


class StudyWatch:
    """Shows where a study stands: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("training targets", total=None)
        self._written = 0.0

    def __enter__(self) -> "StudyWatch":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, standing: Standing) -> None:
        if isinstance(standing.ended, Row) and standing.ended.failed:
            self._say(f"failed: {standing.ended.experiment}: {standing.ended.error}")
        if self._console.is_terminal:
            text = "experiments" if isinstance(standing.ended, Row) else "training targets"
            self._bar.update(self._task, description=text, completed=standing.done, total=standing.total)
        elif time.monotonic() - self._written > _SECONDS_BETWEEN_LINES:
            self._written = time.monotonic()
            self._say(f"{standing.done}/{standing.total}  {_words(standing)}")

    def _say(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _words(standing: Standing) -> str:
    ended = standing.ended
    if not isinstance(ended, Row):
        return f"target trained: {ended.network} on {ended.data}"
    accuracy = "" if ended.measures is None else f": {100 * ended.measures.test_accuracy:.1f} %"
    return f"{ended.experiment}{accuracy}"


def show_claims(console: Console, claims: Iterable[tuple[Claim, Finding]], faithful: bool) -> None:
    """The table of claims; verdicts in brackets unless the data are the paper's."""
    table = Table(box=box.SIMPLE_HEAD)
    for header in ("figure", "network", "the paper", "here", "verdict"):
        table.add_column(header)
    for claim, finding in claims:
        word = finding.verdict if faithful else f"({finding.verdict})"
        table.add_row(claim.figure, claim.subject, claim.says, finding.ours, f"[{_COLOURS[finding.verdict]}]{word}[/]")
    if table.row_count:
        console.print(table)
