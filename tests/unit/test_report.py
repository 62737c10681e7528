"""The report's page: what it says, that it is HTML, and that nothing from outside gets out of its place."""

import re
from dataclasses import replace
from functools import cache
from xml.etree import ElementTree

import html5lib
import numpy as np
import pytest

import audit_examples as examples
from relumine.audit.result import AuditResult, Need
from relumine.audit.severity import REFERENCES
from relumine.report import images, wording
from relumine.report.page import render
from relumine.text import per_cent

HOSTILE = {
    "markup": "<img src=x onerror=alert(1)>",
    "end of script": "</script><script>alert(1)</script>",
    "end of style": "</style><!--",
    "quotes": '"\' onmouseover="alert(1)',
    "template": "{{ 7 * 7 }}{% for %}${alert(1)}",
    "line separators": "a\u2028b\u2029c",
    "entities": "&lt;b&gt; &#60;",
    "half a character": "\ud800",
    "reversed": "exe.\u202egpj\u0000\u001b[31m",
    "long": "x" * 10_000,
}
SVG = "{http://www.w3.org/2000/svg}"
CORNERS = {
    "full": examples.full(),
    "nothing": examples.nothing(),
    "constant": examples.constant(),
    "not numbers": examples.not_numbers(),
    "many defences": examples.many_defences(),
    "no price, no pictures": replace(examples.full(price=None), gallery=(), units=()),
    "empty curves": replace(
        examples.full(),
        curves=tuple(replace(curve, points=(), needs=(), status="inconclusive") for curve in examples.full().curves),
    ),
    **{f"says {name}": examples.saying(text) for name, text in HOSTILE.items()},
}


@cache
def page(name: str) -> str:
    """The page of one of the corners."""
    return render(CORNERS[name])


@cache
def parsed(html: str) -> ElementTree.Element:
    """The page's elements; any parse error is one."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)


def text_of(html: str) -> str:
    return " ".join("".join(parsed(html).find("body").itertext()).split())


@pytest.mark.parametrize("name", CORNERS)
def test_every_result_makes_a_valid_page(name):
    html = page(name)
    html.encode()
    tree = parsed(html)
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    anchors = [a.get("href")[1:] for a in tree.iter("a")]
    assert set(anchors) <= set(ids)
    assert "nan" not in re.sub(r"data:image/png[^\"]*|noise:nan", "", html).lower()


@pytest.mark.parametrize("name", CORNERS)
def test_only_the_page_s_own_elements_and_attributes_are_there(name):
    mine = parsed(page("full"))
    kinds = {element.tag for element in mine.iter()}
    attributes = {name for element in mine.iter() for name in element.attrib}
    tree = parsed(page(name))
    assert {element.tag for element in tree.iter()} <= kinds
    assert {name for element in tree.iter() for name in element.attrib} <= attributes
    assert len(list(tree.iter("script"))) == 1
    assert not [a for a in attributes if a.startswith("on") or a == "style"]


@pytest.mark.parametrize("name", HOSTILE)
def test_texts_from_outside_are_said_and_not_obeyed(name):
    said = text_of(page(f"says {name}"))
    shown = " ".join(wording.legible(HOSTILE[name])[:60].split())
    assert said.count(shown) > 20


def test_what_hides_or_reorders_is_shown_as_a_mark():
    assert wording.legible("a\u202eb\u0000c\ud800\nd") == "a\ufffdb\ufffdc\ufffd\nd"
    assert wording.legible("می\u200cخواهم 👩\u200d🔬") == "می\u200cخواهم 👩\u200d🔬"


def test_the_page_loads_nothing():
    tree = parsed(page("full"))
    for element in tree.iter():
        for attribute in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
            assert re.match(r"data:|#|$", element.get(attribute, "")), (element.tag, attribute)
    assert not re.search(r"@import|url\(", page("full"))


def test_the_policy_names_the_style_and_the_script_and_nothing_else():
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page("full"))
    assert policy.replace("&#39;", "'").startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_warnings_come_first_and_then_the_verdict():
    result = examples.full()
    said = text_of(page("full"))
    sentences = result.verdict.split(". ")
    places = [said.index(part) for part in (result.warnings[0], *sentences, "How many queries give the model away")]
    assert places == sorted(places)


def test_everything_that_a_report_owes_is_there():
    result = examples.full()
    said = text_of(page("full"))
    for part in (*result.limits, result.about.command, result.about.commit, *result.about.versions.values()):
        assert part in said
    for part in (*REFERENCES, "Responsible use", "5f1c0e6ab42d9a37"):
        assert part in said
    for gate in result.gates:
        assert f"{gate.status} {gate.condition} {gate.reason}" in said
    for control in result.controls:
        assert control.evidence in said
    for curve in result.curves:
        assert curve.changes in said


def cells(html: str, kind: str) -> list[list[str]]:
    """The rows of a table, cell by cell."""
    (table,) = (table for table in parsed(html).iter("table") if table.get("class") == kind)
    body = [row for part in table.iter("tbody") for row in part.iter("tr")]
    return [[" ".join(" ".join(cell.itertext()).split()) for cell in row] for row in body]


def test_the_short_table_says_queries_spread_cost_and_baseline():
    rows = {row[0]: row for row in cells(page("full"), "exposed")}
    assert rows["gradients of all classes beside logits"][3] == "31 (28 – 36) not with 20 costs 0.05 without 557"
    assert (
        rows["gradients of all classes beside logits"][5] == "500 (496 – 506) not with 200 costs 0.75 without > 5,000"
    )
    assert rows["label only"][4] == "> 5,000"
    assert "not reconstructed by these attacks within 5,000 queries" in rows["label only"][6]
    assert not [cell for row in cells(page("no price, no pictures"), "exposed") for cell in row if "costs" in cell]


def test_milestones_that_some_seeds_missed_say_so():
    result = examples.full()
    spread = replace(result.curves[0].need("50").queries, seeds=2)
    curve = replace(result.curves[0], needs=(Need("50", spread, None, 5000),))
    assert "in 2 of 3 seeds" in cells(render(replace(result, curves=(curve,))), "exposed")[0][1]


def test_agreement_that_a_constant_guess_has_is_no_figure_to_remember():
    result = examples.full()
    assert "queries copy 95 %" in text_of(page("full"))
    dull = replace(result, verdict="", about=replace(result.about, majority=0.96))
    assert "queries copy 95 %" not in text_of(render(dull))


def test_of_a_single_number_nobody_speaks_of_classes():
    about = examples.about(outputs=1, values="real", class_names=())
    said = text_of(render(replace(examples.full(), about=about, gallery=())))
    assert "comes close to the target" in said
    assert "target's class" not in said


def test_budgets_that_do_not_follow_are_not_numbers():
    result = examples.full()
    controls = (replace(result.controls[0], suggested=None), replace(result.controls[1], suggested=0))
    rows = cells(render(replace(result, controls=controls)), "controls")
    assert {row[0]: row[3] for row in rows if len(row) > 1} == {
        "label only": "none follows",
        "probabilities": "do not expose",
    }
    unsaid = replace(result.about, exposed=())
    said = text_of(render(replace(result, controls=controls, about=unsaid)))
    assert "do not expose probabilities: no limit is small enough" in said


def test_what_is_exposed_today_comes_first_and_the_gravest_of_it():
    result = examples.full()
    rows = [row[:2] for row in cells(page("full"), "controls")]
    assert rows[0] == ["Exposed today"]
    assert rows[1:4] == [["gradients of all classes", "critical"], ["logits", "high"], ["If it were exposed"]]
    for control in result.controls:
        assert control.action in text_of(page("full"))


def test_pictures_that_look_the_same_are_few():
    tree = parsed(page("full"))
    shown = {kind: [e for e in tree.iter("ul") if e.get("class") == kind] for kind in ("gallery", "units")}
    assert {kind: len(found[0]) for kind, found in shown.items()} == {"gallery": 3, "units": 6}


def test_one_seed_has_no_spread():
    said = text_of(page("constant"))
    assert "One seed: no spread is known." in said


def test_every_defence_is_a_row_and_a_point():
    html = page("many defences")
    assert len(cells(html, "defences")) == 40 + 2
    labels = [e.get("aria-label") for e in parsed(html).iter(f"{SVG}g") if e.get("class") == "mark"]
    for number in range(40):
        assert [label for label in labels if label.startswith(f"noise:{number / 10} (gradients): ")]


def test_charts_are_drawn_without_the_script():
    tree = parsed(page("full"))
    svgs = [svg for svg in tree.iter(f"{SVG}svg") if svg.get("data-size")]
    assert [svg.get("data-size") for svg in svgs] == ["wide", "narrow"] * 2
    for svg in svgs:
        marks = [mark for mark in svg.iter(f"{SVG}g") if mark.get("class") == "mark"]
        assert len(marks) >= 10
        width, height = map(float, svg.get("viewBox").split()[2:])
        for mark in marks:
            x, y = map(float, re.findall(r"[\d.]+", mark.get("transform")))
            assert 0 < x < width
            assert 0 < y < height


def test_higher_agreement_is_drawn_higher_and_more_queries_farther_right():
    tree = parsed(page("full"))
    line = next(path for path in tree.iter(f"{SVG}path") if path.get("class") == "line").get("d")
    points = [tuple(map(float, point.split())) for point in line[1:].split("L")]
    assert points == sorted(points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_pictures_have_words():
    for image in parsed(page("full")).iter("img"):
        assert len(image.get("alt")) > 10


def pixels(uri: str) -> np.ndarray:
    import base64
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_maps_are_blue_below_zero_orange_above_and_empty_at_zero():
    picture = pixels(images.map_picture((-2.0, 0.0, 1.0, 2.0), (2, 2)))
    assert picture.shape == (2, 2, 4)
    assert tuple(picture[0, 0]) == (*images.NEGATIVE, 255)
    assert picture[0, 1, 3] == 0
    assert tuple(picture[1, 1]) == (*images.POSITIVE, 255)
    assert picture[1, 0, 3] == 128


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((1, 2, 3), (2, 3)),
        ((3, 4, 5), (4, 5)),
        ((4, 5), (4, 5)),
        ((16,), (4, 4)),
        ((20,), (4, 5)),
        ((5,), (1, 5)),
        ((), (1, 1)),
    ],
)
def test_inputs_of_all_shapes_are_drawn(shape, size):
    values = tuple(range(int(np.prod(shape))))
    assert pixels(images.input_picture(values, shape)).shape[:2] == size
    assert pixels(images.map_picture(values, shape)).shape[:2] == size


def test_colours_of_an_input_are_kept():
    red = np.zeros((3, 2, 2))
    red[0] = 1
    assert tuple(pixels(images.input_picture(red.ravel(), (3, 2, 2)))[0, 0]) == (255, 0, 0, 255)


def test_a_map_of_another_size_than_the_input_is_drawn_all_the_same():
    assert pixels(images.map_picture((1.0,) * 16, (2, 2))).shape[:2] == (4, 4)
    assert images.likeness((1.0, 2.0), (1.0,)) is None


def test_times_are_told_and_anything_else_is_left_alone():
    assert wording.moment("2026-03-02T09:41:07+00:00") == "2 March 2026, 09:41 UTC"
    assert wording.moment("<b>yesterday</b>") == "<b>yesterday</b>"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (1, "100 %"),
        (0.99999, "99.9 %"),
        (0.951, "95.1 %"),
        (0.95, "95 %"),
        (1e-6, "0.1 %"),
        (0, "0 %"),
        (None, "—"),
        (float("nan"), "not a number"),
    ],
)
def test_nothing_but_all_is_called_all(share, said):
    assert per_cent(share) == said


def test_a_page_is_drawn_from_what_was_stored():
    assert render(AuditResult.from_json(examples.full().to_json())) == page("full")


def test_pages_stay_small():
    assert len(page("many defences")) < 2_000_000
