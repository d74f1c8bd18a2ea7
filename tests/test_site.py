"""The built site: its links, and a browser on it.

`.ci/docs` builds it and runs this; without a built site, or a browser, tests skip.
"""

import http.server
import re
import shutil
import threading
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

SITE = Path(__file__).parents[1] / "docs" / "_build" / "html"
PAGES = [page for page in sorted(SITE.rglob("*.html")) if "_static" not in page.parts]
pytestmark = pytest.mark.skipif(not PAGES, reason="the site is not built: see .ci/docs")


class Page(HTMLParser):
    """What a page refers to, and what can be referred to in it.

    Attributes:
        targets: The addresses it links to or loads.
        anchors: The ids of its elements.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        del tag
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            if name == "id" and value:
                self.anchors.add(value)


@cache
def parsed(path: Path) -> Page:
    return Page(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_links_inside_the_site_lead_somewhere(page):
    broken = []
    for target in parsed(page).targets:
        if urlsplit(target).scheme or target.startswith("//"):
            continue
        address, anchor = urldefrag(target)
        path = (page.parent / unquote(address.split("?")[0])).resolve()
        path = page if not address else path
        path = path / "index.html" if path.is_dir() else path
        dangling = anchor and anchor not in ("", "top") and path.suffix == ".html"
        if not path.exists() or (dangling and anchor not in parsed(path).anchors):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SITE)))
def test_a_page_loads_nothing_from_afar(page):
    text = page.read_text(encoding="utf-8")
    loaded = re.findall(r"<(?:script|img|source)[^>]* src=\"([^\"]+)\"", text)
    loaded += re.findall(r"<link[^>]* rel=\"stylesheet\"[^>]* href=\"([^\"]+)\"", text)
    assert [address for address in loaded if urlsplit(address).netloc] == []


@pytest.fixture(scope="module")
def address():
    """The site on a port of this machine: its search does not work on bare files."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            del format, args

    handler = partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium without a window."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no chromium with its chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in (
        "--headless=new",
        "--no-sandbox",  # containers run as root
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(driver)
    with webdriver.Chrome(options=options, service=service) as chrome:
        yield chrome


def test_the_search_finds_constrain(browser, address):
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
    browser.get(f"{address}/index.html")
    box = browser.find_element("css selector", "input[name=q]")
    box.send_keys("constrain")
    box.submit()
    links = wait(browser, 20).until(
        lambda b: b.find_elements("css selector", "#search-results li a")
    )
    found = [link.get_attribute("href") for link in links]
    assert any("api/cdopt_jax.constrain.html" in target for target in found)


BROKEN = """
return [...document.images]
    .filter(image => !(image.complete && image.naturalWidth > 0))
    .map(image => image.src)
"""
EAGER = """
document.querySelectorAll("img").forEach(image => { image.loading = "eager" });
return Promise.all([...document.images].map(image => image.decode().catch(() => {})));
"""


@pytest.mark.parametrize("width", [1280, 390], ids=["desktop", "phone"])
def test_no_page_has_a_broken_image_or_is_wider_than_the_screen(
    browser, address, width
):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    broken = {}
    for page in PAGES:
        name = page.relative_to(SITE).as_posix()
        browser.get(f"{address}/{name}")
        browser.execute_script(EAGER)
        wide = browser.execute_script(
            "return document.documentElement.scrollWidth > window.innerWidth"
        )
        # Whatever failed to load, scripts and styles included, is an error here.
        errors = [e["message"] for e in browser.get_log("browser")]
        faults = browser.execute_script(BROKEN) + errors + (["wide"] if wide else [])
        if faults:
            broken[name] = faults
    assert broken == {}
