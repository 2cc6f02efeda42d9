"""Takes pictures of the page of `t2t serve`, for a look and for the docs.

    python benchmarks/page_screenshots.py FOLDER [IMAGE]

Without an image, a ship is drawn. Needs Chromium and playwright.
"""

import io
import subprocess
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter
from playwright.sync_api import Browser, sync_playwright

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")


def drawn_ship() -> bytes:
    """A picture of a ship at sea."""
    width, height, horizon = 1200, 900, 560
    image = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(image)
    for row in range(height):
        above = row / horizon
        below = (row - horizon) / (height - horizon)
        sky = (120 + 90 * above, 170 + 50 * above, 225 + 15 * above)
        sea = (40 - 20 * below, 96 - 46 * below, 128 - 50 * below)
        colour = sky if row < horizon else sea
        draw.line((0, row, width, row), tuple(round(each) for each in colour))
    for number in range(260):  # glitter, denser near the horizon
        row = horizon + 6 + number * number * 330 // 67_600
        column = number * 7919 % width
        draw.line((column, row, column + 20 + number // 5, row), (92, 140, 162), 2)
    draw.polygon([(220, 540), (1010, 540), (930, 660), (300, 660)], (166, 42, 38))
    draw.polygon([(220, 540), (1010, 540), (1002, 556), (228, 556)], (235, 232, 226))
    draw.rectangle((380, 440, 860, 540), (240, 238, 232))
    draw.rectangle((440, 360, 760, 440), (228, 226, 220))
    draw.rectangle((500, 230, 590, 360), (196, 62, 44))
    draw.rectangle((500, 230, 590, 262), (32, 32, 36))
    draw.rectangle((640, 270, 716, 360), (196, 62, 44))
    draw.rectangle((640, 270, 716, 298), (32, 32, 36))
    for column in range(404, 850, 44):
        draw.ellipse((column, 476, column + 18, 494), (64, 88, 108))
    for column in range(462, 750, 44):
        draw.rectangle((column, 386, column + 24, 410), (64, 88, 108))
    draw.line((900, 540, 900, 300), (70, 70, 76), 8)
    draw.line((300, 540, 300, 330), (70, 70, 76), 8)
    file = io.BytesIO()
    image.filter(ImageFilter.GaussianBlur(1.5)).save(file, "JPEG", quality=92)
    return file.getvalue()


def take(browser: Browser, url: str, image: bytes, folder: Path) -> None:
    """Takes the page empty and with a result, at all sizes and in both schemes."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            page = browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=scheme,  # type: ignore[arg-type]
                device_scale_factor=2 if size == "phone" else 1,
                has_touch=size == "phone",
                is_mobile=size == "phone",
            )
            page.goto(url)
            page.wait_for_selector("#about:has-text('classes')")
            page.screenshot(path=folder / f"{size}-{scheme}-empty.png")
            upload = {"name": "ship.jpg", "mimeType": "image/jpeg", "buffer": image}
            page.set_input_files("#file", upload)  # type: ignore[arg-type]
            page.wait_for_selector("#attention-map", timeout=60_000)
            if page.is_visible("#measure"):
                page.click("#measure")
            page.wait_for_selector("#occlusion-most:not(:empty)", timeout=120_000)
            page.screenshot(path=folder / f"{size}-{scheme}.png", full_page=True)
            page.close()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    image = Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else drawn_ship()
    server = subprocess.Popen(
        [sys.executable, "-m", "t2t", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().rpartition(" ")[2].strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=["--no-sandbox"]
            )
            take(browser, url, image, folder)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
