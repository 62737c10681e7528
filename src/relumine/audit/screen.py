"""What a person sees of an audit: progress while it runs; verdict, table and gates when it has ended."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relumine.audit.compare import AuditComparison
from relumine.audit.result import AuditResult, Case, Curve, Need, Record
from relumine.audit.run import AuditProgress
from relumine.console import LiveLine
from relumine.text import duration, percent

_MILESTONES = ("90", "95", "99", "exact")
_COLOURS = {"exact": "red", "reached": "red", "not reached": "green", "inconclusive": "yellow"}
_CAPTION = "queries until a clone agrees so far with the target, mean over seeds; (2/3): in two of three seeds only"
_OF_SEVERITIES = {"critical": "red", "high": "red", "medium": "yellow", "low": "green", "unknown": "yellow"}
_OF_DIRECTIONS = {"more": "red", "less": "green", "open": "yellow"}
_OF_GATES = {"passed": "green", "failed": "red", "undecided": "yellow"}


class AuditWatch(LiveLine):
    """Shows what is running, the queries spent and the time left: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._verbose = verbose
        columns = SpinnerColumn(), MofNCompleteColumn(), BarColumn(20), TimeElapsedColumn()
        super().__init__(console, "loading the target", *columns, TextColumn("{task.description}"))

    def __call__(self, progress: AuditProgress) -> None:
        ended = progress.ended
        if ended is not None and ended.failed:
            self._say(f"failed: {_words(ended.case)}: {ended.error}")
        elif ended is not None and self._verbose:
            self._say(f"{_words(ended.case)}: {_found(ended)}, {duration(ended.seconds)}")
        if not progress.running:
            return
        text = _standing(progress)
        if self._console.is_terminal:
            total = progress.done + progress.left
            self._bar.update(self._task, description=escape(text), completed=progress.done, total=total, refresh=True)
        self._stand(f"{progress.done} of at most {progress.done + progress.left}: {text}")


def _standing(progress: AuditProgress) -> str:
    running = _words(progress.running[-1])
    more = f" (+{len(progress.running) - 1})" if len(progress.running) > 1 else ""
    left = "" if progress.seconds_left is None else f", at most {duration(progress.seconds_left)} left"
    return f"{progress.queries:,} queries asked{left}; {running}{more}"


def _found(record: Record) -> str:
    agreement = "" if record.measures is None else f", {percent(record.measures.agreement)} agreement"
    return f"{record.outcome.lower().replace('_', ' ')}{agreement}"


def _words(case: Case) -> str:
    place = f"{case.level} behind {case.defence}" if case.defence else case.level
    return f"{place}: {case.attack}, {case.budget:,} queries, seed {case.seed}"


def show_result(console: Console, result: AuditResult) -> None:
    """What voids it first; then the verdict, a row per curve, and the gates."""
    for warning in result.warnings:
        console.print(f"[bold yellow]![/] {escape(warning)}", highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(result.verdict)}[/]", highlight=False, soft_wrap=True)
    console.print(_table(result))
    for control in result.controls:
        if control.exposed:
            name = f"[bold {_OF_SEVERITIES[control.severity]}]{control.severity.upper()}[/]"
            said = f"{control.label}, exposed today: {control.action}"
            console.print(f"{name}  {escape(said)}", highlight=False, soft_wrap=True)
    for gate in result.gates:
        name = f"[bold {_OF_GATES[gate.status]}]{gate.status.upper()}[/]"
        console.print(f"{name}  {escape(gate.condition)}: {escape(gate.reason)}", highlight=False, soft_wrap=True)


def _table(result: AuditResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=_CAPTION)
    table.add_column("exposed", min_width=13)
    for milestone in _MILESTONES:
        table.add_column(_head(milestone), justify="right")
    table.add_column("best", justify="right")
    table.add_column("by", min_width=13)
    for curve in result.curves:
        exposed, *figures, attack = row_of(curve, result.about.seeds).values()
        table.add_row(escape(exposed), *figures, f"[{_COLOURS[curve.status]}]{escape(attack)}[/]")
    return table


def row_of(curve: Curve, seeds: int) -> dict[str, str]:
    """What the table says of a curve, by the heads of its columns."""
    best = max(curve.points, key=lambda point: (point.exact, point.agreement.mean), default=None)
    agreement = "" if best is None else f"{best.agreement.mean:.1%}"
    agreement += f", R² {best.r2.mean:.3f}" if best is not None and best.r2 is not None else ""
    figures = {_head(milestone): _need(curve.need(milestone), seeds) for milestone in _MILESTONES}
    return {"exposed": curve.name, **figures, "best": agreement, "by": best.attack if best else curve.status}


def _head(milestone: str) -> str:
    return milestone if milestone == "exact" else f"{milestone} %"


def _need(need: Need, seeds: int) -> str:
    """The mean, and in how many seeds if not in all; what was not reached says how far it was tried."""
    few = need.queries is not None and need.queries.seeds < seeds
    return f"{need.taken} ({need.queries.seeds}/{seeds})" if few and need.queries else need.taken


def show_comparison(console: Console, comparison: AuditComparison) -> None:
    """What changed, a row per figure, and the verdict; figures that are the same are left out."""
    console.print(f"first   {comparison.before}\nsecond  {comparison.after}", highlight=False, markup=False)
    table = Table(box=box.SIMPLE_HEAD)
    for head in ("exposed", "figure", "first", "second", "gives away"):
        table.add_column(head, justify="right" if head in ("first", "second") else "left")
    for one in comparison.changes:
        if one.direction != "same":
            said = f"[{_OF_DIRECTIONS[one.direction]}]{one.direction}[/]"
            table.add_row(escape(one.exposed), escape(one.figure), one.before, one.after, said)
    if table.rows:
        console.print(table)
    for remark in comparison.remarks:
        console.print(f"[bold yellow]![/] {escape(remark)}", highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(comparison.verdict)}[/]", highlight=False, soft_wrap=True)
