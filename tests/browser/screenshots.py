"""Make the pictures of the README from the real dashboard.

`python -m tests.browser.screenshots DATABASE_FOLDER` writes docs/*.png from the newest finished
study of that folder's database, in light and in dark.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser.serving import ARGUMENTS, ROOT, serve

_PAGES = {
    "frontier": ".st-key-frontier_chart svg g.mark-symbol path",
    "plan": ".st-key-download_plan button",
}
_SETTLE_MS = 2500
_NUM_COLOURS = 128  # flat surfaces and thin lines: a third of the size, no visible difference


def take(page: Page, address: str, name: str, out: Path) -> None:
    """Open a page, wait until it is drawn, and write its picture."""
    page.goto(f"{address}/{name}")
    page.wait_for_selector(_PAGES[name], state="attached", timeout=60_000)
    page.wait_for_timeout(_SETTLE_MS)
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(_NUM_COLOURS).save(out, optimize=True)
    sys.stdout.write(f"{out}\n")


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("home", type=Path, help="folder of kareus.db with a finished study")
    home = parser.parse_args().home
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        sys.exit("no Chromium on this machine: install the package 'chromium'")
    folder = ROOT / "docs"
    folder.mkdir(exist_ok=True)
    with serve(home) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        for mode in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": 1280, "height": 720},
                color_scheme="dark" if mode == "dark" else "light",
                device_scale_factor=1.5,
            )
            page = context.new_page()
            for name in _PAGES:
                take(page, address, name, folder / f"{name}-{mode}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
