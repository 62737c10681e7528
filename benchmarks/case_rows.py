"""Cases and their rows: one JSON line for each, written as soon as it is known, and a table on a page of docs/."""

import json
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    """The rows on file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(row: Row, case: type) -> tuple[object, ...]:
    """What tells a row from others: the fields of its case."""
    return tuple(row[field.name] for field in fields(case))


def run_missing(cases: Iterable[Any], run: Callable[[Any], Row], path: Path) -> None:
    """Run the cases that have no row yet, writing each row as it comes."""
    here = Path(__file__).parent
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=here, text=True).strip()
    known = read(path)
    for case in cases:
        if key(asdict(case), type(case)) in {key(row, type(case)) for row in known}:
            continue
        row = asdict(case) | run(case) | {"commit": commit}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*row.values(), flush=True)


def write_between(begin: str, end: str, text: str, page: Path) -> None:
    """Put a table between its marks."""
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")
