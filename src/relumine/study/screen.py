"""What a person sees of a study: progress while it runs, and the claims when it has ended."""

from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from relumine.console import LiveLine
from relumine.study.claims import Claim, Finding
from relumine.study.experiment import Row
from relumine.study.runner import StudyProgress

_COLOURS = {"better": "green", "same": "green", "short": "yellow", "open": "dim"}


class StudyWatch(LiveLine):
    """Shows where a study stands: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
        super().__init__(console, "training targets", TextColumn("{task.description}"), *columns)

    def __call__(self, standing: StudyProgress) -> None:
        if isinstance(standing.ended, Row) and standing.ended.failed:
            self._say(f"failed: {standing.ended.experiment}: {standing.ended.error}")
        if self._console.is_terminal:
            text = "experiments" if isinstance(standing.ended, Row) else "training targets"
            self._bar.update(self._task, description=text, completed=standing.done, total=standing.total)
        self._stand(f"{standing.done}/{standing.total}  {_words(standing)}")


def _words(standing: StudyProgress) -> str:
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
