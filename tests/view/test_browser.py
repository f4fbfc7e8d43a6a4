"""The page in a browser, with clicks and keys. Needs a Chromium here, and `pip install 'gristmill[browser]'`."""

from __future__ import annotations

import shutil
from importlib.resources import files

import pytest

from gristmill.view.server import View
from tests.view.sample_run import add_source, make_media, make_run

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = (
    *("rows?in=kept", "rows?in=dropped&search=grain", "rows?in=quarantined", "row?in=dropped&n=0"),
    *("row?in=dropped&search=mill+by&n=0", "whatif", "rows?in=nothing"),
)


@pytest.fixture(scope="module")
def browser():
    driver = pytest.importorskip("playwright.sync_api", reason="pip install 'gristmill[browser]'")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("browser"), scores=True)


@pytest.fixture(scope="module")
def view(run):
    with View(str(run)) as served:
        yield served


@pytest.fixture
def page(browser, request):
    """A page that may not complain."""
    context = browser.new_context(**getattr(request, "param", {}))
    opened = context.new_page()
    complaints = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    assert [message for message in complaints if "404" not in message] == []


def number(page, name):
    return int(page.locator(f".tile:has-text('{name}') b").inner_text().replace(",", ""))


def test_rows_are_found_by_clicks_and_keys(view, page):
    page.goto(view.url)
    page.get_by_role("link", name="Dropped").click()
    with page.expect_navigation():
        page.get_by_label("Stage").select_option("ExactDeduplicationStage")
    assert "stage=ExactDeduplicationStage" in page.url
    assert page.locator("li.row").count() == 4
    page.get_by_label("Search text").fill("mill by")
    page.keyboard.press("Enter")
    page.get_by_text("1 to 3 of 3 rows").wait_for()
    assert page.locator("li.row mark").first.inner_text().lower() == "mill by"
    page.locator("li.row a").first.focus()
    page.keyboard.press("Enter")
    page.get_by_text("Dropped by ExactDeduplicationStage").wait_for()
    assert page.locator("del").count() > 0
    page.get_by_role("link", name="Next row").click()
    page.get_by_text("Dropped by ExactDeduplicationStage").wait_for()
    page.get_by_role("link", name="‹ Dropped").click()
    page.get_by_role("link", name="Clear").click()
    page.get_by_role("link", name="Next ›").click()
    page.get_by_text("51 to 80 of 80 rows").wait_for()


def test_the_first_thing_a_keyboard_reaches_leads_to_the_content(view, page):
    page.goto(view.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_script_in_the_data_does_not_run(view, page):
    for path in ("rows?in=kept&search=script", "row?in=kept&search=script&n=0"):
        page.goto(view.url + path)
        page.get_by_text("document.title='owned'").first.wait_for()
        assert "owned" not in page.title()
        assert page.locator("main img, main script").count() == 0


def test_a_slider_moves_the_counts(view, page):
    page.goto(f"{view.url}whatif?column=WordCountFilter")
    before = number(page, "rows kept")
    slider = page.get_by_label("at least, slider")
    at = slider.input_value()
    slider.focus()
    with page.expect_response("**/counts?**"):
        for _ in range(150):
            page.keyboard.press("ArrowRight")
    page.get_by_text("would no longer be kept").wait_for()
    assert slider.input_value() != at
    assert number(page, "rows kept") < before
    assert page.locator("rect.out").count() > 0
    with page.expect_response("**/counts?**"):
        page.get_by_label("at least", exact=True).fill("8")
    page.get_by_text("No row would change").wait_for()
    assert number(page, "rows kept") == before
    page.get_by_label("at least", exact=True).fill("4")
    page.get_by_role("link", name="Show the dropped rows").click()
    page.get_by_role("heading", name="Dropped rows").wait_for()
    assert page.locator("li.row").count() > 0


def test_new_sources_of_a_run_are_announced(browser, page, tmp_path):
    run = make_run(tmp_path)
    with View(str(run)) as view:
        page.goto(f"{view.url}rows?in=kept&page=3")
        before = page.locator("li.row").count()
        add_source(run, tmp_path / "out", "late", 30)
        page.get_by_role("button", name="Show new rows").click(timeout=10_000)
        page.locator("li.row").nth(before).wait_for()
        page.goto("about:blank")


def test_pictures_are_seen_and_sound_is_played(page, tmp_path):
    with View(str(make_media(tmp_path / "media"))) as view:
        page.goto(view.url)
        page.evaluate("Promise.all([...document.images].map(image => image.decode()))")
        assert page.evaluate("[...document.images].map(image => image.naturalWidth)") == [32, 32]
        played = "async () => { const one = document.querySelector('audio'); await one.play(); return one.duration; }"
        assert page.evaluate(played) == pytest.approx(0.1, abs=0.02)
        page.goto("about:blank")


SCREENS = [
    {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "bypass_csp": True}
    for scheme, width in (("light", 1200), ("dark", 1200), ("light", 360))
]


@pytest.mark.parametrize("page", SCREENS, indirect=True, ids=["light", "dark", "phone"])
def test_people_can_use_it_whatever_they_see_or_use(view, page):
    axe = pytest.importorskip("axe_playwright_python")
    script = files(axe).joinpath("axe.min.js").read_text("utf-8")
    for path in PAGES:
        page.goto(view.url + path)
        page.evaluate(script)
        found = page.evaluate("axe.run().then(result => result.violations)")
        faults = [
            (path, one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
        ]
        assert faults == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} is too wide"
