"""The documentation as a site: it builds without a warning, has every public name, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import relumine as rl

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_has_its_place_in_the_reference(site):
    reference = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    places = {"audit": "auditing.audit"}  # a package has that name, too
    assert not [name for name in rl.__all__ if f'id="relumine.{places.get(name, name)}"' not in reference]


def test_fields_of_records_and_members_of_enumerations_are_lists(site):
    assert re.search(r"<li>.*<code>dtype</code>: the precision in which", (site / "api" / "oracle.html").read_text())
    page = (site / "api" / "reconstruct.html").read_text()
    assert f"<code>RECOVERED</code>: {rl.Outcome.RECOVERED.value}" in page


def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    assert not [found for page in site.rglob("*.html") for found in loads.findall(page.read_text())]
    assert not [page.name for page in site.rglob("*.css") if re.search(r"url\([\"']?(?:https?:)?//", page.read_text())]


def test_rows_behind_the_figures_come_along(site):
    assert (site / "results" / "main.jsonl").exists()
    assert 'href="results/defences-digits.jsonl"' in (site / "defence-results.html").read_text()
