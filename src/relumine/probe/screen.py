"""What a person sees of a preflight, and the file that it leaves."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from relumine.console import asked
from relumine.errors import MisuseError
from relumine.explain.map_kind import MapKind
from relumine.oracle.base import Oracle
from relumine.oracle.http.endpoint import toml_lines
from relumine.oracle.http.oracle import HttpOracle
from relumine.probe.discovery import description
from relumine.probe.preflight import Findings


def show_findings(console: Console, findings: Findings) -> None:
    """A table, and one line that says what can be done."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("about")
    table.add_column("found")
    for name, fact in _facts(findings).items():
        table.add_row(name, fact)
    console.print(table)
    for remark in findings.remarks:
        console.print(f"  {remark}", highlight=False, soft_wrap=True)
    if findings.maps is None:
        console.print(f"[bold yellow]NO GRADIENTS[/]  {findings.lost}", highlight=False, soft_wrap=True)
    else:
        console.print(f"[bold green]GRADIENTS[/]  {_means(findings.maps)}", highlight=False, soft_wrap=True)


def write_config(findings: Findings, oracle: Oracle, path: Path) -> Path:
    """For a server the settings that reconstruct reads (--endpoint-config); else the findings, as a [probe] table."""
    if isinstance(oracle, HttpOracle):
        return description(oracle, findings).write(path)
    found = findings.as_dict()
    offer, spent = found.pop("offer"), found.pop("spent")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[probe]\n{toml_lines(offer | found | spent)}", encoding="utf-8")
    except OSError as error:
        raise MisuseError(f"--write-config: cannot write {path} ({error.strerror or error})") from error
    return path


def _facts(findings: Findings) -> dict[str, str]:
    offer = findings.offer
    explained = {"all": "every output", "top": "the largest output", "none": "none"}
    return {
        "inputs": " × ".join(map(str, offer.inputs)),
        "outputs": str(offer.outputs),
        "values": offer.values,
        "precision": offer.dtype,
        "rounded to": "not rounded" if findings.decimals is None else f"{findings.decimals} decimals",
        "explained": explained.get(str(offer.gradients), f"output {offer.gradients}"),
        "explanation": findings.kind,
        "both signs": _said(findings.signed),
        "input times something": _said(findings.proportional),
        "sums up to f(x) − f(0)": _said(findings.complete),
        "scale lost": _said(findings.normalised),
        "same when asked again": "yes"
        if findings.deterministic
        else f"no: differs by {findings.noise:.1g} of the largest",
        "cost of these findings": asked(findings.spent),
    }


def _said(fact: bool | None) -> str:
    return "not known" if fact is None else "yes" if fact else "no"


def _means(maps: MapKind) -> str:
    """How gradients are made of such maps."""
    taken = "divide explanations by the input" if maps.times_input else "explanations are gradients"
    if maps.magnitudes:
        taken = f"magnitudes from explanations{' (their roots)' if maps.squared else ''}"
    elif maps.scaled and not maps.times_input:
        taken = "directions from explanations"
    asked = " and ".join(["their scale"] * maps.scaled + ["signs"] * maps.magnitudes)
    far = ", far out where smoothing does not matter" if maps.smoothing else ""
    return f"{taken}{f', {asked} from values' if asked else ''}{far}"
