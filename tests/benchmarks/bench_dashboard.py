"""How fast pages are on a store with 50 studies: `python -m tests.benchmarks.bench_dashboard`.

Serves the dashboard on a free port and drives it with the system's Chromium. `open`: from the
navigation to the page's last element, in a window that has loaded the application; `choose`: from
the click on a plan to its sentence. Medians over the repeats, in seconds.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.serving import ARGUMENTS, serve
from tests.browser.shelf import fill

_LAST = {
    "Studies": "[data-testid=stDataFrame] canvas",
    "New study": ".st-key-start button:not([disabled])",
    "Jobs": ".st-key-example button",
    "Frontier": ".st-key-frontier_table canvas",
    "Plan": ".st-key-download_plan button",
    "Partitions": ".st-key-partition_chart svg",
    "Machine": ".st-key-import button",
}
_MARKS = ".st-key-frontier_chart svg g.mark-symbol path[aria-label*='Method: Kareus']"


def open_pages(page: Page, repeats: int) -> dict[str, float]:
    """Return the median seconds to open each page through the navigation."""
    taken: dict[str, list[float]] = {title: [] for title in _LAST}
    for _ in range(repeats):
        for title, last in _LAST.items():
            started = time.monotonic()
            page.get_by_role("link", name=title, exact=True).click()
            page.wait_for_selector(last, state="visible")
            taken[title].append(time.monotonic() - started)
    return {title: statistics.median(values) for title, values in taken.items()}


def choose_plans(page: Page, repeats: int) -> float:
    """Return the median seconds from the click on a plan to its sentence."""
    page.get_by_role("link", name="Frontier", exact=True).click()
    page.wait_for_selector(_LAST["Frontier"])
    taken = []
    for repeat in range(repeats):
        mark = page.locator(_MARKS).nth(2 * repeat + 1)
        label = mark.get_attribute("aria-label") or ""
        number = label.split("Plan: ")[1].split(";")[0]
        box = mark.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        started = time.monotonic()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector(f"h3:has-text('Plan {number} runs')", state="attached")
        taken.append(time.monotonic() - started)
        page.wait_for_timeout(700)
    return statistics.median(taken)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        sys.exit("no Chromium on this machine: install the package 'chromium'")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        fill(home / "kareus.db", num_studies=options.studies)
        with serve(home) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            started = time.monotonic()
            page.goto(address)
            page.wait_for_selector(_LAST["Studies"], timeout=60_000)
            sys.stdout.write(f"first page of a cold server  {time.monotonic() - started:.2f} s\n")
            open_pages(page, 1)
            for title, seconds in open_pages(page, options.repeats).items():
                sys.stdout.write(f"open {title:<22}  {seconds:.2f} s\n")
            seconds = choose_plans(page, options.repeats)
            sys.stdout.write(f"choose a plan by click       {seconds:.2f} s\n")
            browser.close()


if __name__ == "__main__":
    main()
