"""The book in a real browser, with the network blocked: every page, both themes, a phone, search, the rotation clock.

Screenshots are left in ``_build/screenshots``: look at them when you change a page.
"""

import functools
import http.server
import re
import shutil
import threading

import numpy as np
import pytest
from built_book import ROOT, built_book, toc_pages

from posenc_ref.rotary import cos_sin, inv_freq

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")

PAGES = toc_pages()
SHOTS = ROOT / "_build" / "screenshots"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # no name leads anywhere
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    return built_book(tmp_path_factory)


@pytest.fixture(scope="module")
def site(book):
    """Address of the book on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=book.html)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("Chromium is missing, the browser tests need it: sudo apt install chromium", pytrace=False)
    SHOTS.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page that may load from the book alone, and all that goes wrong on it."""

    def __init__(self, browser, base, **options):
        self.base, self.faults = base, []
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(60_000)  # a busy machine is not a fault
        self.context.route("**/*", self._block)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.faults.append(f"script error: {error}"))
        self.page.on("console", lambda m: self.faults.append(f"console: {m.text}") if m.type == "error" else None)
        self.page.on("requestfailed", lambda r: self.faults.append(f"request failed: {r.url}"))
        self.page.on("response", lambda r: self.faults.append(f"{r.status}: {r.url}") if r.status >= 400 else None)

    def _block(self, route):
        if route.request.url.startswith((self.base, "data:", "blob:")):
            route.continue_()
        else:
            self.faults.append(f"asks the network for {route.request.url}")
            route.abort()

    def open(self, name):
        """Go to a page and wait until its formulas are typeset."""
        self.page.goto(f"{self.base}/{name}")
        self.page.evaluate("() => window.MathJax?.startup?.promise")
        return self.page


@pytest.fixture
def watched(browser, site):
    """A page over http; at the end of the test nothing may have gone wrong on it."""
    watched = Watched(browser, site)
    yield watched
    watched.context.close()
    assert watched.faults == []


@pytest.fixture
def watched_on_disk(browser, book):
    watched = Watched(browser, book.html.as_uri())
    yield watched
    watched.context.close()
    assert watched.faults == []


def check_formulas(page):
    """Every formula is typeset, and MathJax could read it."""
    source, typeset, errors = page.evaluate(
        """() => [document.querySelectorAll(".math").length, document.querySelectorAll("mjx-container").length,
                  document.querySelectorAll("[data-mml-node=merror], mjx-merror").length]"""
    )
    assert (typeset, errors) == (source, 0)
    return source


def shot(page, name):
    page.screenshot(path=SHOTS / f"{name.replace('/', '_')}.png", full_page=True)


def theme(page):
    return page.evaluate("document.documentElement.dataset.theme")


def check_width(page):
    """The page does not scroll sideways; what is wide scrolls in its own box."""
    width, allowed = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= allowed, page.evaluate(TOO_WIDE)


TOO_WIDE = """() => [...document.querySelectorAll("main *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("pre, table, mjx-container"))
    .map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`).slice(0, 5)"""


@pytest.mark.parametrize("name", PAGES)
def test_page(watched, name):
    page = watched.open(f"{name}.html")
    assert check_formulas(page) > 0 or not name.startswith("notebooks/")
    assert page.locator("article h1").inner_text()
    check_width(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme == '{scheme}'")
        shot(page, f"{name}-{scheme}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    shot(page, f"{name}-phone")
    check_width(page)


@pytest.mark.parametrize("name", [PAGES[0], *[page for page in PAGES if page.startswith("notebooks/")]])
def test_page_from_disk(watched_on_disk, name):
    page = watched_on_disk.open(f"{name}.html")
    if check_formulas(page):
        page.wait_for_function("[...document.fonts].some(f => f.family.includes('MJX') && f.status == 'loaded')")
    assert page.evaluate("document.styleSheets.length") > 5


def test_search_finds_rotary(watched):
    page = watched.open("search.html?q=rotary")
    page.wait_for_selector("#search-results li a[href*='08_rope']")


def test_search_finds_nothing_where_nothing_is(watched):
    page = watched.open("search.html?q=xylophone")
    page.wait_for_function("document.querySelector('#search-results').innerText.includes('did not match')")
    assert page.locator("#search-results li").count() == 0


def test_search_from_disk(watched_on_disk):
    page = watched_on_disk.open("search.html?q=rotary")
    page.wait_for_selector("#search-results li a[href*='08_rope']")
    page.wait_for_timeout(500)
    # Sphinx would like to quote from the pages it found; browsers forbid that on a disk. The list is complete.
    refused = re.compile(
        r"request failed: file:|console: (Access to fetch at 'file:|Failed to load)|script error: Failed to fetch"
    )
    watched_on_disk.faults[:] = [fault for fault in watched_on_disk.faults if not refused.match(fault)]


def test_theme_switch(watched):
    page = watched.open(f"{PAGES[0]}.html")
    seen = set()
    for _ in range(3):
        page.locator(".theme-switch-button:visible").first.click()
        seen.add((theme(page), page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert sorted(name for name, _ in seen) == ["dark", "light"]


def test_focus_is_visible(watched):
    page = watched.open(f"{PAGES[0]}.html")
    for _ in range(12):
        page.keyboard.press("Tab")
        style = page.evaluate(
            "(e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).boxShadow])(document.activeElement)"
        )
        assert style != ["none", "none"], page.evaluate("document.activeElement.outerHTML")


def test_formulas_can_be_read_aloud(watched):
    """MathJax's explorer, which readers switch on in a formula's menu, finds its English rules without a network."""
    watched.context.add_init_script("""localStorage.setItem("MathJax-Menu-Settings", '{"explorer": true}')""")
    page = watched.open("book/notation.html")
    page.wait_for_selector("mjx-container[aria-label*='StartRoot']")


def test_verified_lines_lead_to_their_equations(watched):
    """One link for each line that verify printed, with the number of the equation."""
    page = watched.open("notebooks/08_rope.html")
    text = page.locator(".bd-article").evaluate(
        "a => [...a.querySelectorAll('.cell_output pre')].map(p => p.textContent).join('\\n')"
    )
    lines = re.findall(r"^(eq-[a-z0-9-]+) (\(8\.\d+\)) holds: ", text, re.MULTILINE)
    links = page.locator("a.verified").evaluate_all("all => all.map(a => [a.hash, a.textContent])")
    assert len(lines) > 15
    assert [tuple(link) for link in links] == [(f"#equation-{label}", f"{label} {n}") for label, n in lines]
    for label, number in lines:
        assert page.locator(f"#equation-{label} .eqno").inner_text().startswith(number)


def test_code_has_copy_buttons(watched):
    assert watched.open(f"{PAGES[1]}.html").locator("button.copybtn").count() > 0


# the lists of claims and of equations


def shown(page):
    return page.locator(".ledger dt:visible").all_inner_texts()


@pytest.fixture(params=["claims", "equations"])
def listed(request, watched_on_disk):
    """Page with a list, opened from disk."""
    return watched_on_disk.open(f"book/{request.param}.html")


def test_lists_can_be_searched_and_filtered_by_keyboard(listed):
    everything = shown(listed)
    assert len(everything) > 60
    search = listed.get_by_label("Words to find")
    search.focus()
    listed.keyboard.type("ROTATION norms" if "Claims" in listed.title() else "rope-convert")
    assert len(shown(listed)) == 1
    assert listed.get_by_role("status").inner_text() == f"1 of {len(everything)} shown"
    search.fill("xylophone")
    assert shown(listed) == []
    assert listed.locator("section:has(> .ledger):visible").count() == 0, "headings of nothing"
    search.fill("")
    listed.keyboard.press("Tab")
    listed.keyboard.press("ArrowDown")
    label = listed.locator(".ledger-controls label:has(input:checked)").inner_text()
    kind, count = re.fullmatch(r"(.+) \((\d+)\)", label).groups()
    badges = listed.locator("[class^=badge-]:visible").all_inner_texts()
    assert kind != "all"
    assert len(shown(listed)) == int(count) > 0
    assert all(badge.startswith(kind) for badge in badges)


def test_lists_are_complete_without_scripts(browser, book):
    watched = Watched(browser, book.html.as_uri(), java_script_enabled=False)
    for name, least in (("claims", 80), ("equations", 100)):
        watched.page.goto(f"{watched.base}/book/{name}.html")
        assert watched.page.locator(".ledger dt").count() > least
    watched.context.close()


def test_a_claim_leads_to_its_cell(watched):
    page = watched.open("book/claims.html")
    page.locator(".ledger a[href$='#claim-p2']").click()
    page.wait_for_url("**/notebooks/01_attention_without_order.html#claim-p2")
    assert page.locator("#claim-p2").inner_text().startswith("Claim P2 (")


# the rotation clock


@pytest.fixture(scope="module")
def clock_page(browser, site, book):
    """Chapter page with the clock, opened once."""
    names = [n for n in PAGES if 'class="rotation-clock"' in (book.html / f"{n}.html").read_text("utf-8")]
    assert names, "no page has a rotation clock"
    watched = Watched(browser, site)
    watched.open(f"{names[-1]}.html")
    yield watched
    watched.context.close()


@pytest.fixture
def clock(clock_page):
    clock_page.page.get_by_role("button", name="Start again").click()
    yield clock_page.page
    assert clock_page.faults == []


def table(page):
    """The clock's numbers, one row for each pair: θ, mθ, nθ, (n−m)θ, cos."""
    rows = page.locator(".clock-table tbody tr").all()
    return np.array([[float(td.inner_text().replace("−", "-")) for td in row.locator("td").all()] for row in rows])


def expected(m, n, base, head_dim=8):
    theta = inv_freq(head_dim, base=base)
    cos, _ = cos_sin(np.array(n - m), theta)
    return np.stack([theta, m * theta, n * theta, (n - m) * theta, cos], axis=-1)


def slide(page, which, value):
    page.locator(f".clock-slider input[id$='-{which}']").fill(str(value))


@pytest.mark.parametrize(
    ("m", "n", "base_index", "base"),
    [
        (10, 6, 3, 10_000),
        (0, 0, 3, 10_000),
        (3, 200, 0, 10),
        (199, 1, 5, 500_000),
        (57, 58, 6, 1_000_000),
        (7, 5, 1, 100),
    ],
)
def test_clock_shows_the_numbers_of_the_code(clock, m, n, base_index, base):
    for which, value in (("m", m), ("n", n), ("base", base_index)):
        slide(clock, which, value)
    shown, right = table(clock), expected(m, n, base)
    assert shown.shape == right.shape == (4, 5)
    np.testing.assert_allclose(shown[:, 0], right[:, 0], rtol=5.01e-4)  # four significant digits
    np.testing.assert_allclose(shown[:, 1:], right[:, 1:], atol=5.01e-5)  # four digits after the point
    readout = clock.locator(".clock-said").inner_text().replace("−", "-")
    assert f"Query at {m}, key at {n}: offset n - m = {n - m}." in readout
    assert [o.inner_text() for o in clock.locator(".clock-slider output").all()] == [str(m), str(n), str(base)]


def test_clock_draws_the_angles_of_its_table(clock):
    clock.emulate_media(reduced_motion="reduce")
    slide(clock, "m", 2)
    slide(clock, "n", 1)
    for hand, position in (("q", 2), ("k", 1)):
        matrices = clock.locator(f".clock-{hand}").evaluate_all(
            "hands => hands.map(h => { const t = new DOMMatrix(getComputedStyle(h).transform); return [t.a, t.b]; })"
        )
        angle = position * inv_freq(8)
        # counter-clockwise on a screen whose y axis points down
        np.testing.assert_allclose(matrices, np.stack([np.cos(angle), -np.sin(angle)], axis=-1), atol=1e-6)


def test_clock_works_by_keyboard(clock):
    clock.locator(".clock-slider input[id$='-m']").focus()
    clock.keyboard.press("Home")
    for _ in range(3):
        clock.keyboard.press("ArrowRight")
    np.testing.assert_allclose(table(clock), expected(3, 6, 10_000), atol=5e-4)
    clock.keyboard.press("Tab")
    clock.keyboard.press("End")
    np.testing.assert_allclose(table(clock), expected(3, 200, 10_000), atol=5e-4)
    clock.keyboard.press("Tab")
    clock.keyboard.press("ArrowLeft")
    np.testing.assert_allclose(table(clock), expected(3, 200, 1000), atol=5e-4)
    assert clock.locator(".clock-slider input[id$='-base']").get_attribute("aria-valuetext") == "1000"


def test_shifting_both_moves_the_hands_and_not_the_last_columns(clock):
    before = table(clock)
    button = clock.locator("button[data-shift='1']")
    button.focus()
    clock.keyboard.press("Enter")
    after = table(clock)
    assert (after[:3, 1:3] != before[:3, 1:3]).all()
    assert (after[:, 3:] == before[:, 3:]).all()
    np.testing.assert_allclose(after, expected(11, 7, 10_000), atol=5e-4)
    assert "Both shifted by 1." in clock.locator(".clock-said").inner_text()
    assert clock.locator(".clock-said").get_attribute("aria-live") == "polite"
    slide(clock, "n", 200)
    assert button.is_disabled()
    clock.get_by_role("button", name="Start again").click()
    np.testing.assert_allclose(table(clock), before)


def test_clock_is_labelled(clock):
    for text in ("position m of the query", "position n of the key", "base"):
        assert clock.get_by_role("slider", name=text, exact=True).count() == 1
    drawings = clock.locator(".clock-dial svg[role=img]")
    assert drawings.count() == 4
    assert drawings.nth(1).get_attribute("aria-label") == "Pair 1: query at 1.0000, key at 0.6000 radians."


def test_clock_does_not_move_for_readers_who_ask_so(clock):
    duration = "getComputedStyle(document.querySelector('.clock-hand')).transitionDuration"
    clock.emulate_media(reduced_motion="no-preference")
    assert clock.evaluate(duration) != "0s"
    clock.emulate_media(reduced_motion="reduce")
    assert clock.evaluate(duration) == "0s"


def test_clock_says_in_words_what_it_shows_where_scripts_are_off(browser, site, clock_page):
    watched = Watched(browser, site, java_script_enabled=False)
    watched.page.goto(clock_page.page.url)
    assert len(watched.page.locator(".rotation-clock").inner_text()) > 40
    assert watched.page.locator(".clock-table").count() == 0
    watched.context.close()


# the watch itself


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        ("() => fetch('https://example.org/x').catch(() => 0)", "asks the network for https://example.org/x"),
        ("() => fetch('gone.json')", "404: "),
        ("() => { setTimeout(() => { throw new Error('ours'); }); }", "script error: ours"),
        ("() => console.error('ours')", "console: ours"),
    ],
)
def test_what_goes_wrong_is_noticed(browser, site, action, fault):
    watched = Watched(browser, site)
    watched.open(f"{PAGES[0]}.html").evaluate(action)
    watched.page.wait_for_timeout(200)
    watched.context.close()
    assert any(found.startswith(fault) for found in watched.faults), watched.faults


def test_the_browser_edition_opens_the_notebook(browser, site):
    """Without a network: JupyterLab and the notebook are files of the book, only Python itself comes from elsewhere."""
    watched = Watched(browser, site)
    watched.page.goto(f"{site}/browser/lab/index.html?path=configuration.ipynb")
    watched.page.get_by_role("heading", name="Read a model's configuration").first.wait_for()
    watched.page.get_by_text("config.json").first.wait_for()
    watched.page.screenshot(path=SHOTS / "browser-edition.png")
    watched.context.close()
    asked = [fault for fault in watched.faults if fault.startswith("asks the network")]
    assert all("cdn.jsdelivr.net/pyodide/" in fault for fault in asked), asked
