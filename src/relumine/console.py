"""What a person sees: progress while a run goes on, and a table, the evidence and a verdict when it has ended."""

import math
import threading
import time
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from relumine.oracle.http.oracle import HttpOracle
from relumine.oracle.metering.metered import Progress, Tally
from relumine.reconstruct.matching.method import Fitting
from relumine.reconstruct.result import Evidence, Outcome, Reconstruction
from relumine.text import plural

# Where progress goes to a file or a pipe, lines come this far apart, but for what must be said at once: seldom enough
# for a log, and never ten seconds of silence, after which people look whether a program hangs.
_SECONDS_BETWEEN_LINES = 9


class LiveLine:
    """A context in which a terminal shows a bar; gone afterwards. Elsewhere lines are written, never far apart."""

    def __init__(self, console: Console, description: str, *columns: ProgressColumn) -> None:
        self._console = console
        self._bar = Bar(*columns, console=console)
        self._task = self._bar.add_task(description, total=None)
        self._standing = description
        self._began, self._written = time.monotonic(), -math.inf
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        else:
            threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        if self._console.is_terminal:
            self._bar.update(self._task, visible=False)
            self._bar.stop()

    def _repeat(self) -> None:
        """While nothing new happens, say what is going on and for how long."""
        while not self._ended.wait(0.5):
            now = time.monotonic()
            if now - max(self._began, self._written) >= _SECONDS_BETWEEN_LINES:
                self._say(f"{now - self._began:.0f} s: {self._standing}")

    def _stand(self, line: str) -> None:
        """What is going on from now on; written where there is no bar and the last line is long enough ago."""
        self._standing = line
        if not self._console.is_terminal and time.monotonic() - self._written >= _SECONDS_BETWEEN_LINES:
            self._say(line)

    def _say(self, line: str) -> None:
        self._written = time.monotonic()
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class Watch(LiveLine):
    """Shows where a run stands: one live line on a terminal, plain lines elsewhere, at each new phase too."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        super().__init__(console, "starting", SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self.queries = 0
        self._phase = ""
        self._verbose = verbose

    def __call__(self, progress: Progress) -> None:
        self.queries = progress.spent.queries
        new, self._phase = progress.phase != self._phase, progress.phase
        self._standing = _standing(progress)
        if self._console.is_terminal:
            self._bar.update(self._task, description=self._standing)
        if new and (self._verbose or not self._console.is_terminal):
            self._say(self._standing)


def _standing(progress: Progress) -> str:
    units = "" if progress.units is None else f", {plural(progress.units, 'unit')} found"
    return f"{progress.phase}: {asked(progress.spent)} asked{units}"


class FittingBar:
    """A progress bar for ``GradientMatching(…, watch=bar)``, used as a context."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console or Console(stderr=True))
        self._task = self._bar.add_task("fitting", total=None)

    def __enter__(self) -> "FittingBar":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, fitting: Fitting) -> None:
        held_out = "" if fitting.validation is None else f", held out {fitting.validation:.2g}"
        self._bar.update(
            self._task,
            description=f"student: loss {fitting.loss:.2g}{held_out}",
            completed=fitting.step,
            total=fitting.steps,
        )


def show(console: Console, result: Reconstruction, seconds: float, server: HttpOracle | None = None) -> None:
    """The closing table, the evidence, where a server's answers came from, and one line with the verdict."""
    console.print(_costs(result))
    for name, fact in [*(about_endpoint(server) if server else []), *_facts(result, seconds)]:
        console.print(f"  {name:<20} {fact}", highlight=False, soft_wrap=True)
    colour = "green" if result.outcome is Outcome.RECOVERED else "yellow"
    name = result.outcome.name.replace("_", " ")
    console.print(f"\n[bold {colour}]{name}[/]  {result.outcome.value}", highlight=False, soft_wrap=True)


def _costs(result: Reconstruction) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    table.add_column("phase", "total")
    for header, number in _COLUMNS.items():
        table.add_column(header, f"{getattr(result.spent, number):,}", justify="right")
    for phase, tally in result.spent.phases.items():
        table.add_row(phase, *(f"{getattr(tally, number):,}" for number in _COLUMNS.values()))
    return table


_COLUMNS = {"gradient queries": "gradient_queries", "value queries": "value_queries", "numbers returned": "floats"}


def _facts(result: Reconstruction, seconds: float) -> list[tuple[str, str]]:
    evidence = result.evidence
    facts = []
    if result.outcome is Outcome.RECOVERED:
        hidden = " and ".join(f"{units:,}" for units in result.hidden)
        facts.append(("hidden units", hidden or "none: the model is linear"))
        if result.activation is not None:
            facts.append(("activation", result.activation))
    elif result.hidden:
        facts.append(("units seen so far", f"{sum(result.hidden):,}"))
    if evidence.noise_floor is not None:
        facts.append(("noise floor", f"{evidence.noise_floor:.1e} of the answers' size"))
    if evidence.accuracy is not None:
        facts.append(("accuracy", f"{evidence.accuracy:.1e} of the largest answer: as far as the noise allows"))
    if evidence.smallest_spacing is not None:
        facts.append(("closest kinks", f"{evidence.smallest_spacing:.1e} apart on a searched line"))
    if evidence.verification_gap is not None:
        facts.append(("verification", _verified(evidence)))
    if evidence.remark:
        facts.append(("remark", evidence.remark))
    return [*facts, ("time", f"{seconds:.1f} s")]


def _verified(evidence: Evidence) -> str:
    return (
        f"largest gap {evidence.verification_gap:.1e} of the largest answer, at {evidence.verification_points:,} points"
        f"{evidence.where and ': '}{evidence.where}"
    )


def about_endpoint(oracle: HttpOracle) -> list[tuple[str, str]]:
    """Where the answers came from, the authorisation, and what went over the wire."""
    traffic, endpoint = oracle.traffic, oracle.endpoint
    megabytes = (traffic.sent_bytes + traffic.received_bytes) / 1e6
    wire = f"{traffic.requests:,}, {traffic.repeated:,} of them repeated; {megabytes:,.1f} MB, {traffic.seconds:.1f} s"
    allowed = [("authorised by", endpoint.authorized_by)] if endpoint.authorized_by else []
    return [("endpoint", endpoint.url), *allowed, ("requests", wire)]


def asked(tally: Tally) -> str:
    """'12 gradient and 3 value queries', leaving out what was not asked."""
    kinds = {"gradient": tally.gradient_queries, "value": tally.value_queries}
    parts = [f"{number:,} {kind}" for kind, number in kinds.items() if number]
    return f"{' and '.join(parts) or 'no'} {'query' if tally.queries == 1 else 'queries'}"
