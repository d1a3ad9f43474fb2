"""The page of bench, in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import uc_stage
from tests.fixtures.exports import make_export
from tests.fixtures.results import COPY, SOURCE, full, keep, measurement, report
from tests.fixtures.shell import uc_stage as command
from uc_stage.benchmark import bars, beside
from uc_stage.benchmark.page import draw
from uc_stage.errors import InvalidRequest
from uc_stage.model import BenchReport

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.browser import Browser

HOSTILE = '</title><script>alert("x")</script><img src=http://127.0.0.1:9/x onerror=alert(1)>\'"&\x1b[2J\u202e\udce9'

# Each bar as the browser laid it out: its words, its part of the track's width, and the boxes.
BARS = """
[...document.querySelectorAll("%s li.bar")].map(li => {
  const track = li.querySelector("rect.track").getBoundingClientRect();
  const parts = [...li.querySelectorAll("rect.part")].map(one => one.getBoundingClientRect());
  return {label: li.querySelector(".label").innerText, said: li.querySelector(".said").innerText,
    width: track.width, height: track.height, shares: parts.map(one => one.width / track.width),
    colours: [...li.querySelectorAll("rect.part")].map(one => getComputedStyle(one).fill),
    text: li.querySelector("svg").getAttribute("aria-label")};
})
"""
# What reaches out of the page to the right, but for what scrolls by itself.
OUTSIDE = """
[...document.querySelectorAll("body *")].filter(one => !one.closest("table") && !one.closest("svg")
  && one.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5).map(one => one.outerHTML)
"""


def compared() -> BenchReport:
    """A full report that fell behind a baseline."""
    now = full()
    quicker = [replace(one, rates=tuple(2 * rate for rate in one.rates)) for one in now.measurements]
    before = [replace(one, rows_per_second=one.rows_per_second and 2 * one.rows_per_second) for one in quicker]
    return replace(now, comparisons=(beside.compare("main.json", report(*before), now, baseline=True),))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_bytes(draw(compared()))
    return path


def bars_of(browser: Browser, figure: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.ask(BARS % figure)
    return found


class Text(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(data.decode())

    def handle_starttag(self, tag: str, _: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_asks_no_network_runs_no_script_and_complains_of_nothing(page: Path, browser: Browser) -> None:
    browser.open(page)

    assert browser.asked == [page.as_uri()]
    assert browser.complaints == []
    assert browser.ask("document.scripts.length") == 0
    assert "https://" not in page.read_text(encoding="utf-8")
    assert browser.ask("document.title") == f"uc-stage bench: {COPY}"


def test_the_bars_are_as_long_as_the_numbers_on_one_scale(page: Path, browser: Browser) -> None:
    browser.open(page)
    made = full()
    shown = bars_of(browser, "#throughput")

    # A page is in the order of the report: targets, then readers.
    assert len(shown) == len(made.measurements)
    longest = max(one.bytes_per_second for one in made.measurements)
    for bar, one in zip(shown, made.measurements, strict=True):
        assert (bar["width"] > 100, bar["height"]) == (True, 14)
        expected = [] if one.failed else [pytest.approx(one.bytes_per_second / longest, abs=0.002)]
        assert bar["shares"] == expected
        assert bar["said"] == ("failed" if one.failed else bar["said"])
        assert bar["text"].startswith(f"{bar['label']}: {bar['said']}")
    assert [bar["label"] for bar in shown[6:10]] == [
        f"{workers} workers, {pages}" for workers in (0, 2) for pages in ("cold", "warm")
    ]
    assert shown[9]["said"] == "6.72 M rows/s"
    [cold], [warm] = shown[0]["colours"], shown[1]["colours"]
    assert cold != warm
    legend = 'getComputedStyle(document.querySelectorAll("#throughput .legend rect")[%d]).fill'
    assert [browser.ask(legend % at) for at in (0, 1)] == [cold, warm]


def test_the_repeats_are_drawn_from_the_slowest_to_the_fastest(page: Path, browser: Browser) -> None:
    browser.open(page)
    script = """[...document.querySelectorAll("#throughput li.bar")].map(li => {
      const [line, part] = [li.querySelector("line.reach"), li.querySelector("rect.part")];
      if (!line) return null;
      const [to, bar] = [line.getBoundingClientRect(), part.getBoundingClientRect()];
      return [(to.left - bar.left) / bar.width, (to.right - bar.left) / bar.width]; })"""
    reaches = browser.ask(script)
    assert [reach is not None for reach in reaches] == [len(one.rates) > 1 for one in full().measurements]
    # The widest one is told from the strokes' own width best.
    assert reaches[9] == pytest.approx([0.9, 1.04], abs=0.03)


def test_the_time_is_stacked_in_proportion(page: Path, browser: Browser) -> None:
    browser.open(page)
    made = full().stages
    way = [[stage.seconds_per_million_rows for stage in one.stages if stage.share is not None] for one in made]
    longest = max(map(sum, way))

    shown = bars_of(browser, "#stages")

    assert [bar["label"] for bar in shown] == ["orders", "orders-1f3a9c"]
    for bar, seconds in zip(shown, way, strict=True):
        assert bar["shares"] == pytest.approx([one / longest for one in seconds], abs=0.002)
        assert len(set(bar["colours"])) == len(seconds)
        assert "storage 0." in bar["text"]
        assert "transfer" not in bar["text"]
    words = browser.ask('document.querySelector("#stages").innerText')
    assert "orders: the longest is storage" in words
    assert "orders: a worker would add transfer 0.15 s" in words
    assert "write it without compression: 2.10 M rows/s becomes 2.90 M rows/s" in words


def test_source_and_copy_and_the_wait_are_drawn(page: Path, browser: Browser) -> None:
    browser.open(page)
    against, waits = bars_of(browser, "#against"), bars_of(browser, "#waits")

    assert [bar["label"] for bar in against] == ["orders", "orders-1f3a9c"] * 3
    assert against[1]["said"] == "5.10 M rows/s (1.0x)"
    assert against[4]["shares"] == [pytest.approx(1.0, abs=0.002)]
    played = [one for one in full().measurements if one.wait_share is not None]
    assert [bar["shares"] for bar in waits] == [[pytest.approx(one.wait_share, abs=0.002)] for one in played]
    words = browser.ask("document.body.innerText")
    for said in (
        "after 23.8 epochs",
        "no reader passes 11.6 M rows/s",
        "Beside the baseline main.json",
        "skipped files",
    ):
        assert said in words


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1200])
def test_the_page_fits_the_screen_and_can_be_read(page: Path, browser: Browser, width: int, scheme: str) -> None:
    browser.open(page, width=width, scheme=scheme)

    assert browser.ask("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.ask(OUTSIDE) == []
    for bar in bars_of(browser, ""):
        assert bar["width"] >= 100
    # The contrast of text, by WCAG 2.2: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    pairs = browser.ask(
        """["h1", ".tile span", ".tile b.good", ".tile b.bad", "figcaption", "caption", "td.bad"].map(name => {
          const one = document.querySelector(name), behind = one.closest(".card") || document.body;
          return [name, getComputedStyle(one).color, getComputedStyle(behind).backgroundColor]; })"""
    )
    for name, ink, ground in pairs:
        assert contrast(ink, ground) >= 4.5, (name, ink, ground)
    assert (luminance(pairs[0][2]) > 0.5) is (scheme == "light")


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_all_that_is_drawn_can_be_read_out(page: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.ask("document.documentElement.lang") == "en"
    assert browser.ask('document.querySelectorAll("h1").length') == 1
    assert browser.ask(
        '[...document.querySelectorAll("svg")].every(one => one.getAttribute("aria-label") || one.ariaHidden)'
    )
    assert browser.ask('[...document.querySelectorAll("figure")].every(one => one.querySelector("h3, figcaption"))')
    assert browser.ask(
        '[...document.querySelectorAll("table")].every(one => one.caption && one.tHead.rows.length === 1)'
    )
    assert browser.ask('[...document.querySelectorAll("thead th")].every(one => one.scope === "col" && one.innerText)')
    assert browser.ask('[...document.querySelectorAll("tbody tr")].every(one => one.cells[0].scope === "row")')
    # What scrolls can be reached by the keyboard.
    assert browser.ask('[...document.querySelectorAll(".scroll")].every(one => one.tabIndex === 0 && one.ariaLabel)')
    cells = '[...document.querySelectorAll("table")].at(-1)'
    assert browser.ask(f"{cells}.tBodies[0].rows.length") == len(full().measurements)
    assert browser.ask(f"[...{cells}.rows].every(row => row.cells.length === {cells}.rows[0].cells.length)")


def test_a_hostile_name_is_text(tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "bench.html"
    one = measurement("torch", 5.0, HOSTILE, note=HOSTILE)
    bad = report(one, measurement("arrow", 4.0, HOSTILE), measurement("arrow", 4.0, "x"), skipped={HOSTILE: HOSTILE})
    now = replace(
        bad, kept_in=HOSTILE, stages=tuple(replace(old, target=HOSTILE, note=HOSTILE) for old in full().stages[:1])
    )
    path.write_bytes(draw(replace(now, comparisons=(beside.compare(HOSTILE, full(), now, baseline=False),))))

    browser.open(path, width=360)

    assert (browser.asked, browser.complaints) == ([path.as_uri()], [])
    assert browser.ask('document.querySelectorAll("script, img").length') == 0
    assert browser.ask(OUTSIDE) == []
    words = browser.ask("document.body.innerText")
    assert (
        '</title><script>alert("x")</script><img src=http://127.0.0.1:9/x onerror=alert(1)>\'"&\\x1b[2J\\u202e\\udce9'
        in words
    )


@settings(max_examples=30)
@given(st.text(), st.text())
def test_no_text_can_leave_its_place(target: str, note: str) -> None:
    made = report(measurement("torch", 5.0, target, note=note))
    plain = Text(draw(report(measurement("torch", 5.0, "x", note="y"))))
    shown = Text(draw(made))
    assert shown.tags == plain.tags


@given(st.floats(0, 1e15))
def test_a_short_number_is_right_to_three_digits(number: float) -> None:
    text = bars.short(number)
    digits, _, unit = text.partition(" ")
    value = float(digits.replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]
    assert value == pytest.approx(number, rel=0.006, abs=0.5)


def test_names_beside_bars_are_as_short_as_they_can_be_told_apart() -> None:
    assert bars.short_names([SOURCE, COPY]) == {SOURCE: "orders", COPY: "orders-1f3a9c"}
    assert bars.short_names(["/a/x", "/b/x"]) == {"/a/x": "/a/x", "/b/x": "/b/x"}
    assert bars.short_names(["/"]) == {"/": "/"}


@pytest.mark.parametrize(
    "made",
    [
        report(measurement("raw", 5.0)),
        report(measurement("arrow", 5.0, failed=True, rows_per_second=None, bytes_per_second=0.0)),
        report(measurement("arrow", 0.5, SOURCE), measurement("arrow", 5.0), at="", machine=None, targets=()),
        BenchReport(full().measurements),
    ],
    ids=["raw", "failed", "no facts", "bare"],
)
def test_a_report_without_the_rest_is_drawn_too(made: BenchReport, tmp_path: Path, browser: Browser) -> None:
    path = tmp_path / "bench.html"
    path.write_bytes(draw(made))
    browser.open(path)

    assert browser.complaints == []
    assert len(bars_of(browser, "#throughput")) == len(made.measurements)
    for missing in ("#stages", "h2:empty"):
        assert browser.ask(f"document.querySelector({json.dumps(missing)})") is None
    assert not re.search(r"\b(nan|inf|None)\b", browser.ask("document.body.innerText"))


def test_bench_draws_what_it_measured_and_replaces_its_own_pages_alone(tmp_path: Path, browser: Browser) -> None:
    target, path = str(tmp_path / "<b>orders"), tmp_path / "out" / "bench.html"
    make_export(target, files=1, rows=100)
    path.parent.mkdir()
    path.write_text("<html>of another</html>")
    with pytest.raises(InvalidRequest, match="is there, and is no page of bench"):
        uc_stage.bench(target, readers=["raw"], html=str(path))
    assert path.read_text() == "<html>of another</html>"
    path.unlink()

    for readers in (["raw"], ["raw", "arrow"]):
        made = uc_stage.bench(target, readers=readers, html=str(path))
        browser.open(path)
        assert len(bars_of(browser, "#throughput")) == len(made.measurements)
        assert all(reader in browser.ask('document.querySelector("#throughput").innerText') for reader in readers)
    assert "<b>orders" in browser.ask("document.body.innerText")
    assert "100 rows in 1 file" in browser.ask("document.body.innerText")
    assert [entry.name for entry in path.parent.iterdir()] == ["bench.html"]


def test_a_kept_result_is_drawn_without_measuring(tmp_path: Path, browser: Browser) -> None:
    kept = keep(tmp_path / "a.json", full())
    assert command("bench", "--compare", kept, "--html", tmp_path / "a.html").code == 0
    browser.open(tmp_path / "a.html")
    assert len(bars_of(browser, "#throughput")) == len(full().measurements)
    assert f"kept in {kept}" in browser.ask("document.body.innerText")
