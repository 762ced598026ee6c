"""The page in a real browser."""

import base64
import json
import re

import msgspec
import pytest

from grace_bench.report.archive import write_page
from grace_bench.report.contents import FIGURES
from grace_bench.report.write import write_report
from grace_bench.runs.results import decode, encode
from tests.unit.grace_bench.report import browser
from tests.unit.grace_bench.report.samples import BASELINES, METHODS, codecs, run, sweep, write
from tests.unit.grace_bench.survey.test_compare import row, steps

WHY = browser.missing()
pytestmark = [pytest.mark.skipif(WHY is not None, reason=str(WHY)), pytest.mark.xdist_group("browser")]
TRAINED = len({**METHODS, **BASELINES}) - 1 + 1  # over 1 Gbit/s: without the limit, with the name that is markup
NASTY = "<img src=x onerror=alert(1)>"
DEFECT = "a page that shows runs over other links, too"
# What a page draws, asks for and says is looked at in the gate; what else its readers do, at night.
MORE = pytest.mark.night(DEFECT)


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory):
    page = browser.Page(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Everything in it: three tasks, three links, several seeds, a failure, a stranger, a name that is markup."""
    directory = tmp_path_factory.mktemp("results")
    documents = [*sweep(seeds=(0, 1)), run(NASTY, link="1gbit"), run("dgc", link="1gbit", workers=2)]
    write(directory, documents, codecs())
    (directory / "runs" / "stranger.json").write_text("{}")
    write_report(directory, figures=False)
    return directory / "report.html"


@pytest.fixture
def page(open_browser, report):
    open_browser.open(report)
    yield open_browser
    assert open_browser.messages() == []
    asked = [url for url in open_browser.requests() if not url.startswith(("file:", "data:", "blob:"))]
    assert asked == []


def points(page, name):
    """Number of methods that each plot of a figure marks, once it shows what is selected."""
    page.figures()
    return page.js(
        "return [...document.querySelectorAll('#figure-' + arguments[0] + ' .plot')]"
        ".map((plot) => plot.querySelectorAll('.points_marks path').length)",
        name,
    )


def check_figures(page):
    assert page.figures() == [figure.name for figure in FIGURES]
    assert page.js("return document.getElementById('missing')") is None
    paths = page.js(
        "return [...document.querySelectorAll('.figure')].map((one) => one.querySelectorAll('svg.marks path').length)"
    )
    assert min(paths) > 10
    labels = page.js("return [...document.querySelectorAll('.plot')].map((one) => one.getAttribute('aria-label'))")
    assert min(map(len, labels)) > 20
    assert points(page, "quality-throughput") == [TRAINED]  # the limit is not among them
    assert points(page, "quality-epoch-time") == [TRAINED] * 2


def test_every_figure_is_drawn_without_scrolling(page):
    check_figures(page)
    assert page.js("return window.scrollY") == 0
    assert page.js("return document.documentElement.scrollHeight > 2 * window.innerHeight"), (
        "they do not fit the window"
    )


def test_a_page_that_draws_what_is_in_view_alone_is_caught(open_browser, report):
    right, lazy = report.read_text(encoding="utf-8"), report.with_name("lazy.html")
    wrong = right.replace("(card = cards.find(isStale))", "(card = null)")
    assert wrong != right
    lazy.write_text(wrong, encoding="utf-8")
    open_browser.open(lazy)
    with pytest.raises(AssertionError, match="not within"):
        open_browser.figures(seconds=2)


def test_a_page_with_a_defect_is_caught(open_browser, report):
    right, broken = report.read_text(encoding="utf-8"), report.with_name("broken.html")
    wrong = right.replace(" && (links || onLink(group))", "")
    assert wrong != right
    broken.write_text(wrong, encoding="utf-8")
    open_browser.open(broken)
    with pytest.raises(AssertionError):
        check_figures(open_browser)


def test_nothing_in_a_name_becomes_markup(page):
    page.choose("#link", "1gbit")
    page.figures()
    assert NASTY in page.column("method")
    assert page.js("return document.querySelectorAll('img').length") == 0


@MORE
def test_filters_of_task_link_workers_and_family(page):
    rows = len(page.column("method"))
    assert rows == TRAINED + 1
    assert page.js("return document.querySelector('#link').value") == "1gbit"  # where most methods ran
    page.choose("#link", "all links")
    assert len(page.column("method")) == 3 * (rows - 1) + 1
    assert set(page.column("link")) == {"100mbit", "1gbit", "10gbit"}
    page.choose("#link", "1gbit")
    page.choose("#workers", "2")
    assert page.column("method") == ["dgc"]
    assert points(page, "quality-throughput") == [1]
    page.choose("#workers", "4")
    page.click("input[data-family='quantization']")
    assert "quantization" not in page.column("family")
    assert len(page.column("method")) == rows - 5
    assert points(page, "quality-throughput") == [TRAINED - 5]
    page.choose("#task", "lstm")
    page.figures()
    assert "perplexity" in page.js("return document.querySelector('#table thead').textContent")
    assert "quantization" not in page.column("family")
    for name in page.js("return [...document.querySelectorAll('input[data-family]')].map((one) => one.dataset.family)"):
        if page.js("return document.querySelector(`input[data-family='${arguments[0]}']`).checked", name):
            page.click(f"input[data-family='{name}']")
    assert page.column("method") == []
    page.figures()
    assert "Nothing in this selection" in page.js("return document.querySelector('#figure-step-time').textContent")


@MORE
def test_the_head_says_what_ran_and_where(page):
    facts = page.js("return document.getElementById('facts').innerText").replace("\n", " ")
    for part in (
        "workers 4",
        "link 1gbit",
        "steps 400",
        "batch of each worker 32",
        "seeds 1, 2",
        "2 cores",
        "toolkit torch",
    ):
        assert part in facts
    page.choose("#link", "all links")
    assert "100mbit, 1gbit, 10gbit" in page.js("return document.getElementById('facts').innerText")


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """Three seeds: two methods within each other's ranges, and one far behind; one of them with another toolkit too."""
    directory = tmp_path_factory.mktemp("tied")
    finals = {"none": (0.90, 0.91, 0.92), "dgc": (0.905, 0.915, 0.925), "signsgd": (0.5, 0.51, 0.52)}
    documents = [
        run(method, seed=seed, final=final, link="1gbit")
        for method, ends in finals.items()
        for seed, final in enumerate(ends)
    ]
    write(directory, documents)
    other = decode(json.dumps(run("dgc", link="1gbit")))
    (directory / "runs" / "jax.json").write_text(encode(msgspec.structs.replace(other, toolkit="jax")))
    write_report(directory, figures=False)
    return directory / "report.html"


@MORE
def test_what_is_not_told_apart_is_not_crowned(open_browser, tied):
    open_browser.open(tied)
    best, *_ = open_browser.js(
        "return [...document.querySelectorAll('#glance > div')].map((one) => [one.dataset.clear, one.textContent])"
    )
    assert best[0] == "false"
    assert "no clear first: dgc, none" in best[1]
    assert "last evaluation" in best[1]
    assert "signsgd" not in best[1]
    open_browser.js("state.off.add(DATA.groups.find((group) => group.label === 'dgc').family); drawAll()")
    best, *_ = open_browser.js(
        "return [...document.querySelectorAll('#glance > div')].map((one) => [one.dataset.clear, one.textContent])"
    )
    assert best[0] == "true"
    assert "no clear first" not in best[1]


@MORE
def test_one_run_each_is_no_ranking(open_browser, tmp_path):
    ends = {"none": 0.90, "dgc": 0.95, "signsgd": 0.5}
    write(tmp_path, [run(method, final=final, link="1gbit") for method, final in ends.items()])
    write_report(tmp_path, figures=False)
    open_browser.open(tmp_path / "report.html")
    open_browser.figures()
    tiles = open_browser.js(
        "return [...document.querySelectorAll('#glance > div')].map((one) => [one.dataset.clear, one.textContent])"
    )
    for clear, text in tiles[:2]:  # of quality, and of the time to the target
        assert clear == "false"
        assert "one run each: no ranking, which takes several seeds" in text
    assert open_browser.js("return document.querySelectorAll('.front').length") == 0
    for name in ("throughput", "bytes"):
        note = open_browser.js(
            "return document.querySelector(arguments[0]).textContent", f"#figure-quality-{name} .note"
        )
        assert "One run each: no Pareto front, which takes several seeds." in note


@MORE
def test_captions_are_what_the_data_say(open_browser, tied):
    open_browser.open(tied)
    open_browser.figures()
    notes = open_browser.js(
        "return Object.fromEntries([...document.querySelectorAll('.figure')].map("
        "(one) => [one.dataset.figure, one.querySelector('.note').textContent]))"
    )
    assert "range over 3 seeds" in notes["quality-throughput"]
    on = open_browser.js("return selected().filter((group) => group.front_throughput).length")
    assert f"{on} of 3" in notes["quality-throughput"]
    open_browser.choose("#toolkit", "jax")
    open_browser.figures()
    assert open_browser.column("method") == ["dgc"]
    note = open_browser.js("return document.querySelector('#figure-quality-throughput .note').textContent")
    assert "one run each" in note
    open_browser.choose("#toolkit", "all")
    assert sorted(open_browser.column("toolkit")) == ["jax", "torch", "torch", "torch"]
    assert open_browser.messages() == []


@MORE
def test_the_axis_of_quality_has_all_data(page):
    page.figures()
    least, low = page.js(
        "const rows = selected().filter((group) => group.figures.includes('quality-epoch-time'));"
        "const plot = document.querySelector('#figure-quality-epoch-time .plot');"
        "const least = Math.min(...rows.flatMap((group) => group.curve.low ?? group.curve.quality));"
        "return [least, plot.view.scale('y').domain()[0]]"
    )
    assert low <= least < 0.3


@MORE
def test_headings_sort_both_ways_and_what_is_missing_stays_last(page):
    def value(text):
        match = re.match(r"[-+]?[\d,.]+", text)
        return float(match[0].replace(",", "")) if match else None

    for key in ("throughput", "quality", "step_ms", "relative", "target"):
        for _ in range(2):
            page.click(f"#table th[data-key='{key}'] button")
            order = page.js(
                "return document.querySelector(`th[data-key='${arguments[0]}']`).getAttribute('aria-sort')", key
            )
            values = [value(text) for text in page.column(key)]
            there = [value for value in values if value is not None]
            assert values == there + [None] * (len(values) - len(there))
            if key != "target":  # in seconds or in minutes
                assert there == sorted(there, reverse=order == "descending")
    page.click("#table th[data-key='method'] button")
    names = page.column("method")
    assert len(names) == TRAINED + 1
    assert names == page.js("return [...arguments[0]].sort((a, b) => a.localeCompare(b))", names)
    assert page.js("return document.querySelectorAll('#table th[aria-sort=ascending]').length") == 1


@MORE
def test_the_parts_of_a_step_add_up_to_it(page):
    page.figures()
    ends = page.js(
        "const sums = {}; for (const bar of document.querySelectorAll('#figure-step-time .parts_marks path')) {"
        " const { name, ms, step_ms } = bar.__data__.datum; (sums[name] ??= [step_ms, 0])[1] += ms; }"
        "return Object.values(sums)"
    )
    assert len(ends) == TRAINED + 1
    assert all(total == pytest.approx(step, rel=0.05) for step, total in ends)  # sums of medians over seeds


@MORE
def test_methods_are_singled_out_everywhere(page):
    page.figures()
    index = page.js("return document.querySelector('.chip[data-method]').dataset.method")
    page.click(f".chip[data-method='{index}']")
    page.figures()
    faint = "return document.querySelectorAll('#figure-quality-throughput .points_marks path[opacity=\"0.13\"]').length"
    assert page.js(faint) == TRAINED - 1
    assert page.js("return document.querySelectorAll('tr.faint').length") == len(page.column("method")) - 1
    page.click("#legend .plain")
    assert page.js("return document.querySelectorAll('tr.faint').length") == 0


@MORE
def test_hover_tells_the_numbers(page):
    page.figures()
    text = page.until(
        "const marks = [...document.querySelectorAll('#figure-quality-throughput .points_marks path')];"
        "const mark = marks.find((one) => one.__data__.datum.name === 'topk:ratio=0.01'), box = mark.getBoundingClientRect();"
        "mark.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: box.x + 3, clientY: box.y + 3 }));"
        "return document.querySelector('#vg-tooltip-element.visible')?.textContent"
    )
    for part in ("accuracy", "2 seeds", "samples/s", "sends", "of fp32", "90.0"):
        assert part in text


@MORE
def test_light_and_dark(open_browser, report):
    page = open_browser
    ground = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#figure-quality-throughput .role-axis-title text').getAttribute('fill')"
    page.open(report, dark=True)
    page.js("localStorage.clear()")
    page.open(report, dark=True)
    page.figures()
    assert (page.js(ground), page.js(ink)) == ("rgb(18, 21, 27)", "#a2abbb")
    page.click("#theme")
    page.figures()
    assert page.js(ground) == "rgb(246, 247, 249)"
    assert page.js(ink) == "#5b6475"
    page.open(report, dark=True)  # the choice is kept
    assert page.js(ground) == "rgb(246, 247, 249)"
    page.js("localStorage.clear()")
    page.open(report)
    assert page.js(ground) == "rgb(246, 247, 249)"
    assert page.messages() == []


FITS = "const place = document.querySelector('.scroll'); return place.scrollWidth <= place.clientWidth"


@MORE
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_never_scrolls_sideways_and_the_table_fits(page, report, width):
    page.open(report, width=width)
    page.figures()
    assert page.js(FITS)
    shown = page.js("return [...document.querySelectorAll('#table th:not(.gone)')].map((one) => one.dataset.key)")
    assert {"method", "quality"} < set(shown)
    assert len(shown) >= (3 if width == 390 else 9)
    page.click("#wide")
    assert page.js("return document.querySelector('#table .gone')") is None
    assert not page.js(FITS)
    page.click("#wide")
    assert page.js(FITS)
    page.choose("#link", "all links")
    page.figures()
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")
    wide = page.js(
        "return [...document.querySelectorAll('body *:not(.scroll *)')]"
        ".filter((one) => one.getBoundingClientRect().width > window.innerWidth).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert wide == []


@MORE
def test_procedural_data_are_marked_on_every_figure_that_shows_them(page):
    def find_marked():
        page.figures()
        return page.js(
            "return [...document.querySelectorAll('.figure')].filter((one) => !one.querySelector('.procedural').hidden &&"
            " [...one.querySelectorAll('.plot')].every((plot) =>"
            " [...plot.querySelectorAll('text')].some((note) => note.textContent.startsWith('procedural'))))"
            ".map((one) => one.dataset.figure)"
        )

    assert find_marked() == []
    page.choose("#task", "resnet20")
    assert find_marked() == [figure.name for figure in FIGURES if figure.name != "codec-latency"]


@MORE
def test_failures_strangers_and_notes_are_listed(page):
    text = page.js("return document.getElementById('appendix').textContent")
    for part in (
        "Runs that failed: 1",
        "indices out of order at byte 12",
        "runs/stranger.json",
        "its schema is None",
        "votes of +-1",
    ):
        assert part in text


@MORE
def test_the_codecs_figure_has_its_own_choices(page):
    page.figures()
    unit = "return document.querySelector('#figure-codec-latency .role-axis-title text').textContent"
    assert page.js(unit) == "time of one tensor"
    page.choose("select[data-codec='unit']", "relative to a sum")
    page.figures()
    assert "y.add_(x)" in page.js(unit)
    page.choose("select[data-codec='size']", "4,096")
    assert "4,096 elements" in page.js("return document.querySelector('#figure-codec-latency .note').textContent")


@MORE
def test_on_paper_all_figures_are_drawn_in_light_colors(page, report):
    page.open(report, dark=True)
    page.js(
        "window.seen = null; window.addEventListener('beforeprint', () => {"
        " const figures = [...document.querySelectorAll('.figure')];"
        " window.seen = [document.documentElement.dataset.theme, figures.every((one) => one.querySelector('svg.marks'))]; });"
    )
    made = page.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    assert page.js("return window.seen") == ["light", True]
    assert base64.b64decode(made["data"]).startswith(b"%PDF")
    assert page.js("return document.documentElement.dataset.theme") == "dark"


@MORE
def test_what_has_no_data_is_named_with_its_command(open_browser, tmp_path):
    write(tmp_path, [run(), run("none")])
    write_report(tmp_path, figures=False)
    open_browser.open(tmp_path / "report.html")
    assert open_browser.figures() == ["quality-epoch-time", "quality-throughput", "quality-bytes", "step-time"]
    text = open_browser.js("return document.getElementById('missing').textContent")
    assert f"grace bench codecs --json > {tmp_path}/codecs.json" in text
    assert "Transports and links (survey, figure 9 and 10)" in text
    assert open_browser.messages() == []


@MORE
def test_a_figure_of_too_many_says_what_it_draws_and_the_table_offers_all(open_browser, tmp_path):
    write(tmp_path, [*(run(f"method{k}", points=3) for k in range(230)), run("none")])
    write_report(tmp_path, figures=False)
    open_browser.open(tmp_path / "report.html")
    assert points(open_browser, "quality-throughput") == [80]
    note = open_browser.js("return document.querySelector('#figure-quality-throughput .note').textContent")
    assert "Drawn are 80 of 231" in note
    assert len(open_browser.column("method")) == 200
    open_browser.click("#more button")
    assert len(open_browser.column("method")) == 231
    assert open_browser.messages() == []


@MORE
def test_an_archive_of_the_survey(open_browser, tmp_path):
    """All figures, times included; a task that the table of steps does not know says so; nothing is infinitely high."""
    rows = [
        row(task=task, method=name, recipe=name, seed=seed)
        for task in "ac"
        for name in ("none", "bf16", "topk")
        for seed in (0, 1)
    ]
    write_page(rows, "a.parquet", tmp_path / "a.html", steps(none=(90, 20, 5), bf16=(50, 11, 4), topk=(10, 6, 3)))
    open_browser.open(tmp_path / "a.html")
    names = open_browser.figures()
    assert {"quality-epoch-bytes", "step-time", "links"} <= set(names)
    assert points(open_browser, "quality-epoch-bytes") == [3, 3]
    assert open_browser.js("return document.querySelectorAll('#figure-step-time .parts_marks path').length") > 3
    open_browser.choose("#task", "c: survey")
    open_browser.figures()
    empty = "return document.querySelector('#figure-step-time').innerText.includes('Nothing in this selection')"
    assert open_browser.js(empty)
    assert points(open_browser, "quality-epoch-bytes") == [3, 3]
    assert open_browser.messages() == []


@MORE
def test_a_report_of_codecs_alone(open_browser, tmp_path):
    write(tmp_path, [], codecs(sizes=(10,), threads=(1,)))
    write_report(tmp_path, figures=False)
    open_browser.open(tmp_path / "report.html")
    assert open_browser.figures() == ["codec-latency"]
    assert open_browser.messages() == []


@MORE
def test_a_thousand_runs_open_quickly(open_browser, tmp_path):
    """Goal: 3 s. The first of three tries that meets it is enough: other tests run on the same cores."""
    tasks = tuple(f"task{k}" for k in range(5))
    documents = sweep(tasks=tasks, links=("100mbit", "1gbit", "10gbit", "25gbit"))
    write(tmp_path, documents[:1000])
    assert write_report(tmp_path, figures=False)["runs"] == 1000
    times = []
    while len(times) < 3 and (not times or min(times) >= 3):
        times.append(open_browser.open(tmp_path / "report.html"))
        open_browser.until("return document.querySelectorAll('#figure-quality-epoch-time svg.marks').length")
    assert min(times) < 3, times
    assert open_browser.messages() == []
