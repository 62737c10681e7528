"""The page: one file of HTML with everything in it, from an audit's result and nothing else."""

import base64
import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from relumine.audit.result import AuditResult, Picture
from relumine.audit.severity import REFERENCES
from relumine.report import curves, images, tables, wording
from relumine.report.curves import best
from relumine.report.tables import end_of, winners
from relumine.report.wording import between, decimal, headline, moment, money, scientific, short, with_spread
from relumine.text import count, duration, per_cent, plural

_PARTS = Path(__file__).parent / "templates"

# What templates call to say numbers and names.
_FORMS = (
    *(count, decimal, headline, money, moment, per_cent, scientific, short, between, with_spread),
    *(duration, plural, end_of, winners, best),
)

# Pictures and units shown, those that differ most first: more of them look the same to a reader.
_MOST_PICTURES, _MOST_UNITS = 3, 6


def render(result: AuditResult) -> str:
    """The report as HTML. It asks the network for nothing, and runs no script and no style but its own.

    Texts of the result come from outside: they are escaped where they are written, and the page's policy allows no
    script and no style but those whose digests it names.
    """
    charts = [chart for chart in (curves.leakage(result), curves.frontier(result)) if chart is not None]
    style, script = _part("style.css"), _part("script.js")
    try:
        return _template().render(
            result=result,
            about=result.about,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            charts={chart.name: chart for chart in charts},
            alike=wording.agrees(result.about),
            figures=tables.key_figures(result),
            columns=tables.COLUMNS,
            plain={curve.level: curve for curve in result.curves if not curve.defence},
            looks=dict(zip((curve.level for curve in result.curves), curves.looks(result, result.curves), strict=True)),
            defences=tables.defences(result),
            cases=tables.cases(result.records),
            actions=tables.actions(result),
            references=REFERENCES,
            gallery=_gallery(result),
            units=_units(result),
        )
    except jinja2.UndefinedError as error:  # a word that no audit writes, in a file from outside
        raise LookupError(str(error)) from error


def _policy(style: str, script: str) -> str:
    """The Content-Security-Policy: nothing but this style, this script and the pictures inside the page."""
    allowed = f"style-src {_digest(style)}; script-src {_digest(script)}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _digest(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


@cache
def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PARTS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_final,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for form in _FORMS:
        environment.filters[form.__name__] = form
    return environment.get_template("page.html")


def _final(value: Any) -> Any:
    """Every text on its way to the page, before it is escaped; what is marked as HTML was made here."""
    return wording.legible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _shown(picture: Picture) -> dict[str, Any]:
    return {
        "input": images.input_picture(picture.input, picture.shape),
        "target": images.map_picture(picture.target_map, picture.shape),
        "clone": images.map_picture(picture.clone_map, picture.shape),
        "target_class": picture.target_class,
        "clone_class": picture.clone_class,
        "same": picture.target_class == picture.clone_class,
        "likeness": images.likeness(picture.target_map, picture.clone_map),
    }


def _gallery(result: AuditResult) -> list[dict[str, Any]]:
    """The inputs whose maps differ most."""
    shown = [_shown(picture) for picture in result.gallery]
    return sorted(shown, key=lambda one: -1.0 if one["likeness"] is None else one["likeness"])[:_MOST_PICTURES]


def _units(result: AuditResult) -> dict[str, Any]:
    """The recovered units, the worst first, so that what is left out is better than what is seen."""
    worst_first = sorted(result.units, key=lambda unit: -math.inf if math.isnan(unit.distance) else -unit.distance)
    shown = [
        (*(images.map_picture(row, result.about.input_shape) for row in (unit.true, unit.recovered)), unit.distance)
        for unit in worst_first[:_MOST_UNITS]
    ]
    return {"total": len(result.units), "worst": shown[0][2] if shown else None, "shown": shown}
