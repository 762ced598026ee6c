"""A headless Chromium for the tests of the report's page, or the reason why there is none."""

from __future__ import annotations

import json
import shutil
import time

from tests.patience import PATIENCE

SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def missing() -> str | None:
    """Programs that a browser test needs and this machine does not have."""
    try:
        import selenium  # noqa: F401
    except ModuleNotFoundError:
        return "selenium is not installed: pip install 'grace-dl[dev]'"
    if not (browser() and shutil.which("chromedriver")):
        return "no headless browser: apt install chromium chromium-driver"
    return None


def browser() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")


class Page:
    """The browser, at one page."""

    def __init__(self, profile):
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service

        options = Options()
        options.binary_location = browser()
        for switch in (*SWITCHES, f"--user-data-dir={profile}", "--window-size=1280,900"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(PATIENCE)
        self._lines = []

    def open(self, path, *, width=1280, dark=False) -> float:
        """Opens a file; seconds until the page had loaded, by the browser's own clock."""
        height = 812 if width < 500 else 900
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(f"file://{path}")
        self.until("return document.documentElement.dataset.ready === 'true'")
        self.until("return performance.timing.loadEventEnd > 0")
        return self.js("return performance.timing.loadEventEnd - performance.timing.navigationStart") / 1000

    def js(self, code, *arguments):
        return self.driver.execute_script(code, *arguments)

    def until(self, code, *arguments, seconds=PATIENCE):
        """Waits until this JavaScript returns something true, and returns it."""
        end = time.monotonic() + seconds
        while not (answer := self.js(code, *arguments)):
            assert time.monotonic() < end, f"not within {seconds} s: {code}"
        return answer

    def figures(self, seconds=PATIENCE):
        """Waits, without scrolling, until all figures are drawn; their names."""
        names = self.js("return [...document.querySelectorAll('.figure')].map((one) => one.dataset.figure)")
        for name in names:
            fresh = "return document.getElementById(arguments[0]).dataset.fresh === 'true'"
            self.until(fresh, f"figure-{name}", seconds=seconds)
            assert self.js(
                "const all = [...document.querySelectorAll('#' + arguments[0] + ' .plot')];"
                "return all.every((one) => one.querySelector('svg.marks'))",
                f"figure-{name}",
            )
        return names

    def choose(self, select, text):
        self.js(
            "arguments[0].selectedIndex = [...arguments[0].options].map((one) => one.text).indexOf(arguments[1]);"
            "arguments[0].dispatchEvent(new Event('change'))",
            self.driver.find_element("css selector", select), text,
        )  # fmt: skip

    def click(self, selector):
        self.js("document.querySelector(arguments[0]).click()", selector)

    def column(self, key):
        """The texts of a column of the table, without the ranges."""
        return self.js(
            "return [...document.querySelectorAll(`#table td[data-key='${arguments[0]}']`)].map((cell) => {"
            "const own = cell.cloneNode(true); own.querySelectorAll('small, .front').forEach((one) => one.remove());"
            "return own.textContent.trim(); })",
            key,
        )

    def messages(self):
        """Messages of the console since the last time."""
        return [line["message"] for line in self.driver.get_log("browser")]

    def requests(self):
        """Everything that the page has asked for, other than from itself; the browser's own pages left out."""
        for line in self.driver.get_log("performance"):
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._lines.append((message["params"]["documentURL"], message["params"]["request"]["url"]))
        return [url for document, url in self._lines if document.startswith("file:")]

    def close(self):
        self.driver.quit()
