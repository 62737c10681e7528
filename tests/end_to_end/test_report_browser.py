"""The report in a real browser: Debian's chromium, driven by Playwright. Skipped where there is no chromium."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

import audit_examples as examples
from relumine.report.page import render

playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt-get install chromium")

HOSTILE = (
    "</script><img src=https://evil.example/x onerror=\"document.title='owned'\"><script>document.title='owned'//\u2028"
)

# Computed in the page: texts whose contrast with what is behind them is below what WCAG AA asks for.
TOO_FAINT = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const says = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!says || !element.getClientRects().length || element.closest("script, style")) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((p, q) => q - p);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.push([element.tagName, element.className, element.textContent.slice(0, 40), ratio]);
  }
  return faint;
}"""


class Opened:
    """A page that was opened, and everything that it asked for or complained about."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.context.route(re.compile("^(?!file:|data:)"), self._refuse)
        self.page.goto(path.as_uri())

    def _refuse(self, route) -> None:
        self.asked.append(route.request.url)
        route.abort()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with playwright.sync_playwright() as driver:
        # Containers often allow neither its sandbox nor much shared memory; the pages are our own.
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Reports on disk, by name."""
    folder = tmp_path_factory.mktemp("reports")
    results = {
        "full": examples.full(),
        "hostile": examples.saying(HOSTILE),
        "long": examples.saying("x" * 10_000),
        "many": examples.many_defences(),
        "nothing": examples.nothing(),
        "crowded": replace(examples.full(), curves=(examples.curve("a", "one"), examples.curve("b", "other"))),
        "not_numbers": examples.not_numbers(),
    }
    for name, result in results.items():
        (folder / f"{name}.html").write_text(render(result), "utf-8")
    return {name: folder / f"{name}.html" for name in results}


@pytest.fixture
def opened(browser, files):
    """Opens reports, and closes them afterwards; nobody may have complained or asked for anything."""
    contexts = []

    def open_it(name: str = "full", **options) -> object:
        contexts.append(Opened(browser, files[name], **options))
        return contexts[-1].page

    yield open_it
    for one in contexts:
        one.context.close()
        assert one.complaints == []
        assert one.asked == []


PHONE = {"viewport": {"width": 390, "height": 844}}
DARK = {"color_scheme": "dark"}


def chart(page, name: str):
    return page.locator(f"figure[data-chart={name}]")


@pytest.mark.parametrize("name", ["full", "hostile", "long", "many", "nothing", "not_numbers"])
def test_a_phone_shows_it_without_scrolling_sideways(opened, name):
    page = opened(name, **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    outside = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *, footer *")].filter((e) => {
             const box = e.getBoundingClientRect();
             return box.width && !e.closest(".scroll, svg") && (box.right > 390.5 || box.left < -0.5); })
           .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_a_phone_shows_charts_of_its_own(opened):
    page = opened(**PHONE)
    assert chart(page, "leakage").locator("svg.narrow").is_visible()
    assert not chart(page, "leakage").locator("svg.wide").is_visible()
    size = page.evaluate(
        """() => { const text = document.querySelector("svg.narrow .title"), svg = text.ownerSVGElement;
                   const scale = svg.clientWidth / svg.viewBox.baseVal.width;
                   return parseFloat(getComputedStyle(text).fontSize) * scale; }"""
    )
    assert size > 11


def test_nothing_from_outside_runs(opened):
    page = opened("hostile")
    assert "owned" not in page.title().split("<")[0]
    assert page.title().startswith("relumine audit: </script><img")
    assert page.locator("img[src^=http]").count() == 0


def test_the_policy_holds_back_what_would_get_in(browser, files, tmp_path):
    """As if a text had got out of its place all the same."""
    evil = "<script>document.title='owned'</script><img src='https://evil.example/x'><p style='color:red' id=p>p</p>"
    broken = tmp_path / "broken.html"
    broken.write_text(files["full"].read_text("utf-8").replace("<footer>", evil + "<footer>"), "utf-8")
    one = Opened(browser, broken)
    assert one.page.title().startswith("relumine audit")
    assert one.page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    assert one.asked == []
    assert len(one.complaints) >= 3
    one.context.close()


def test_pointing_at_a_point_tells_it(opened):
    page = opened()
    figure = chart(page, "leakage")
    tip = figure.locator(".tip")
    assert tip.is_hidden()
    figure.locator("svg.wide .series").nth(4).locator(".mark .glyph").nth(2).hover()
    assert tip.is_visible()
    assert "gradients of all classes" in tip.inner_text()
    assert "queries" in tip.inner_text()
    page.mouse.move(1, 1)
    assert tip.is_hidden()


def test_points_on_top_of_each_other_are_all_told(opened):
    page = opened("crowded")
    figure = chart(page, "leakage")
    figure.locator("svg.wide .series").nth(0).locator(".mark .glyph").first.hover(force=True)
    told = figure.locator(".tip p").all_inner_texts()
    assert [line.partition(":")[0] for line in told] == ["one", "other"]


def test_touching_a_point_on_a_phone_tells_it(opened):
    page = opened(**PHONE, has_touch=True)
    figure = chart(page, "leakage")
    figure.locator("svg.narrow .series").nth(0).locator(".mark .glyph").last.tap()
    tip = figure.locator(".tip")
    assert "label only" in tip.inner_text()
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390


def test_a_click_on_the_legend_switches_a_series(opened):
    page = opened()
    figure = chart(page, "leakage")
    line = figure.locator("svg.wide .series").nth(1)
    button = figure.get_by_role("button", name="probabilities", exact=True)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert line.is_hidden()
    button.press("Enter")
    assert line.is_visible()


def test_defended_curves_can_be_added(opened):
    page = opened()
    figure = chart(page, "leakage")
    assert figure.locator("svg.wide .series:visible").count() == 6
    figure.locator("summary").click()
    figure.get_by_role("button", name="gradients of all classes, round:2").click()
    assert figure.locator("svg.wide .series:visible").count() == 7


def places(page) -> list[str]:
    """Where lines and points are, in the page's own words."""
    return re.findall(r'class="line" d="([^"]+)"|transform="([^"]+)"', page.content())


def test_the_script_draws_what_was_drawn_without_it(browser, files, opened):
    still = browser.new_context(java_script_enabled=False)
    page = still.new_page()
    page.goto(files["full"].as_uri())
    drawn = places(page)
    assert len(drawn) > 100
    assert page.locator("svg.wide .mark").first.is_visible()
    still.close()
    scripted = opened()
    assert places(scripted) == drawn


def test_every_defence_says_its_name_to_who_points_at_it(opened):
    page = opened()
    figure = chart(page, "frontier")
    marks = figure.locator("svg.wide .mark")
    named = [mark.get_attribute("aria-label").split(" (")[0] for mark in marks.all()]
    assert {words for words, *_ in examples.DEFENCES} <= set(named)
    marks.nth(named.index("noise:1")).locator(".glyph").hover()
    assert figure.locator(".tip").inner_text().startswith("noise:1 (")


def test_the_keyboard_reaches_everything(opened):
    page = opened()
    reached = []
    for _ in range(120):
        page.keyboard.press("Tab")
        what = page.evaluate(
            """() => { const e = document.activeElement;
                       return e.closest(".mark") ? "point" : e.closest(".legend") ? "legend"
                            : e.matches(".scroll") ? "table" : e.tagName; }"""
        )
        reached.append(what)
        if what == "BODY":
            break
    assert {"point", "legend", "table", "SUMMARY", "A", "PRE"} <= set(reached)
    # One stop per series, not one per point.
    assert reached.count("point") < 20


def test_arrows_walk_along_a_curve_and_escape_leaves(opened):
    page = opened()
    figure = chart(page, "leakage")
    tip = figure.locator(".tip")
    figure.locator("svg.wide .mark[tabindex='0']").first.focus()
    told = [tip.inner_text()]
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
        told.append(tip.inner_text())
    assert "label only" in told[2]
    assert "probabilities" in told[3]
    assert len(set(told)) >= 6
    page.keyboard.press("Escape")
    assert tip.is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "not_numbers"])
def test_texts_stand_out_from_what_is_behind_them(opened, scheme, name):
    page = opened(name, color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    assert page.evaluate(TOO_FAINT) == []


def test_curves_stand_out_in_both_schemes(opened):
    ratio = """() => { const parse = (t) => t.match(/[\\d.]+/g).map(Number).slice(0, 3).map((c) => c / 255)
          .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
          .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const card = parse(getComputedStyle(document.querySelector("section:not(.warnings)")).backgroundColor);
        return [...document.querySelectorAll(".series .line")].map((line) => {
          const [a, b] = [parse(getComputedStyle(line).stroke), card].sort((p, q) => q - p);
          return (a + 0.05) / (b + 0.05); }); }"""
    for options in ({}, DARK):
        assert min(opened(**options).evaluate(ratio)) >= 3


def test_the_scheme_of_the_reader_is_followed_and_paper_is_white(opened):
    back = "getComputedStyle(document.querySelector('.verdict')).backgroundColor"
    page = opened(**DARK)
    assert page.evaluate(back) != "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    assert page.evaluate(TOO_FAINT) == []


def test_paper_shows_charts_and_whole_tables(opened):
    page = opened(viewport={"width": 720, "height": 1000})
    page.emulate_media(media="print")
    assert page.locator("svg.wide").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf(format="A4")[:5] == b"%PDF-"


def test_what_is_seen_has_words_and_what_is_pressed_has_a_name(opened):
    page = opened()
    assert page.evaluate("[...document.images].filter((i) => !i.alt || !i.naturalWidth).length") == 0
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, [role=region], [role=group], [role=radiogroup], .mark")]
           .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length)
                            || document.getElementById(e.getAttribute("aria-labelledby")))).length"""
    )
    assert unnamed == 0
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_link_to_the_folded_table_unfolds_it(opened):
    page = opened()
    assert not page.locator("table.points").is_visible()
    page.get_by_role("link", name="a table below").click()
    assert page.locator("table.points").is_visible()
