"""The page in a real browser."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from t2t.serving.predictor import Predictor

Encode = Callable[..., bytes]


class Visit:
    """A page that is open, and what went wrong on it."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.wrong: list[str] = []
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self.listen)
        page.on("request", self.check)

    def listen(self, message: Any) -> None:
        """Notes errors, such as breaches of the content security policy."""
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.wrong.append(message.text)

    def check(self, request: Any) -> None:
        """Notes requests to anywhere else."""
        if not request.url.startswith((self.url, "blob:", "data:")):
            self.wrong.append(request.url)

    def upload(self, content: bytes, kind: str = "image/png") -> None:
        """Chooses a file."""
        file = {"name": "file.png", "mimeType": kind, "buffer": content}
        self.page.set_input_files("#file", file)

    def text(self, selector: str) -> str:
        """The text of an element."""
        found: str = self.page.inner_text(selector)
        return found

    def wait_for(self, expression: str) -> None:
        """Waits until an expression holds; the page's policy forbids it to poll."""
        until = time.monotonic() + 30
        while not self.page.evaluate(expression):
            assert time.monotonic() < until, expression
            self.page.wait_for_timeout(20)

    def wait_for_model(self) -> None:
        """Waits until the page knows the model."""
        self.wait_for("document.title.includes('t2t_vit_7_32')")

    def wait_for_evidence(self) -> None:
        """Waits until everything about an image is there."""
        self.page.wait_for_selector("#attention:visible")
        measured = "document.querySelector('#occlusion-most').textContent"
        measured += " && !document.querySelector('#occlusion').hidden"
        self.wait_for(
            f"({measured}) || document.querySelector('#measure').offsetParent"
        )
        if self.page.is_visible("#measure"):  # where a model is slow
            self.page.click("#measure")
            self.wait_for(measured)


@pytest.fixture(scope="module")
def served(start_at_port: Any, predictor: Predictor) -> Iterator[str]:
    with start_at_port(predictor, max_upload_bytes=50_000) as server:
        yield f"http://127.0.0.1:{server.port}/"


@pytest.fixture
def visit(browser: Any, served: str) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = Visit(page, served)
    page.goto(served)
    found.wait_for_model()
    yield found
    page.close()
    assert found.wrong == []


def test_an_image_is_predicted_and_explained(
    visit: Visit, predictor: Predictor, encode: Encode
) -> None:
    page = visit.page
    image = encode("PNG", (120, 80))
    visit.upload(image)
    visit.wait_for_evidence()
    (expected,) = predictor.predict(image, top=6)
    rows = page.locator("#predictions button").all_inner_texts()
    assert [row.split("\n") for row in rows] == [
        [each.name, f"{100 * each.probability:.1f} %"] for each in expected.classes[:5]
    ]
    widths = page.eval_on_selector_all(
        "#predictions i", "bars => bars.map(bar => bar.style.width)"
    )
    assert float(widths[0][:-1]) == pytest.approx(100 * expected.best.probability, 0.01)
    page.select_option("#top", "10")
    assert page.locator("#predictions button").count() == 6
    assert "6 classes · 16" in visit.text("#about")
    assert "16\u00a0×\u00a016 pixels" in visit.text("#input-text")
    captions = page.locator("#token-grids figcaption").all_inner_texts()
    assert captions[0].split("\n") == ["after split 1", "16 × 16 tokens"]
    assert len(captions) == 4
    assert "ms" in visit.text("#timing")
    assert "strongest at the" in page.get_attribute("#attention-map", "aria-label")
    second = page.locator("#predictions button").nth(1)
    second.click()
    name = expected.classes[1].name
    visit.wait_for(
        "!document.querySelector('#occlusion.waiting') && "
        f"document.querySelector('#occlusion-text').textContent.includes('{name}')"
    )
    pressed = page.locator("#predictions button[aria-pressed=true]")
    assert pressed.inner_text().startswith(name)


def test_layers_and_heads_are_chosen_by_keyboard(
    browser: Any, start_at_port: Any, encode: Encode
) -> None:
    with start_at_port(Predictor("builtin", "cpu")) as server:
        url = f"http://127.0.0.1:{server.port}/"
        page = browser.new_page()
        visit = Visit(page, url)
        page.goto(url)
        visit.upload(encode("JPEG", (64, 64)), "image/jpeg")
        page.wait_for_selector("#attention:visible")
        look = "document.querySelector('#attention-map').toDataURL()"
        assert visit.text("#layer-text") == "block 7 of 7"
        drawn = {page.evaluate(look)}
        page.focus("#layer")
        page.keyboard.press("ArrowLeft")
        assert visit.text("#layer-text") == "block 6 of 7"
        assert page.get_attribute("#layer", "aria-valuetext") == "block 6 of 7"
        drawn.add(page.evaluate(look))
        heads = page.get_by_role("radiogroup").or_(page.locator("#heads"))
        assert heads.last.inner_text().split() == ["Head", "all", "1", "2", "3", "4"]
        page.focus("#heads input >> nth=0")
        page.keyboard.press("ArrowRight")
        label = page.get_attribute("#attention-map", "aria-label")
        assert label.startswith("Attention rollout up to block 6, head 1: strongest")
        drawn.add(page.evaluate(look))
        page.focus("input[name=kind] >> nth=0")
        page.keyboard.press("ArrowRight")
        label = page.get_attribute("#attention-map", "aria-label")
        assert label.startswith("Attention of block 6, head 1: strongest")
        drawn.add(page.evaluate(look))
        assert len(drawn) == 4
        page.close()
    assert visit.wrong == []


def test_images_are_dropped_and_pasted(visit: Visit, encode: Encode) -> None:
    send = """([kind, encoded]) => {
        const bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
        const transfer = new DataTransfer();
        transfer.items.add(new File([bytes], "a.png", { type: "image/png" }));
        const more = { bubbles: true, cancelable: true };
        const event = kind === "paste"
            ? new ClipboardEvent("paste", { clipboardData: transfer, ...more })
            : new DragEvent(kind, { dataTransfer: transfer, ...more });
        document.body.dispatchEvent(event);
        return event.defaultPrevented;
    }"""
    image = base64.b64encode(encode()).decode()
    page = visit.page
    page.evaluate(send, ["dragenter", image])
    assert page.is_visible("#drop-hint")
    assert page.evaluate(send, ["drop", image])
    page.wait_for_selector("#predictions button")
    assert page.is_hidden("#drop-hint")
    visit.wait_for_evidence()
    other = base64.b64encode(encode("PNG", (64, 64))).decode()
    page.evaluate(send, ["paste", other])
    visit.wait_for("document.querySelector('#preview').naturalWidth === 64")
    visit.wait_for_evidence()


def test_what_cannot_be_read_is_said(visit: Visit, encode: Encode) -> None:
    visit.upload(b"text", "text/plain")
    visit.page.wait_for_selector("#problem:visible")
    assert "not an image in a known format" in visit.text("#problem")
    assert visit.page.get_attribute("#problem", "role") == "alert"
    assert visit.page.is_hidden("#results")
    visit.upload(encode())
    visit.wait_for_evidence()
    assert visit.page.is_hidden("#problem")


def test_large_images_are_shrunk_by_the_browser(visit: Visit, encode: Encode) -> None:
    image = encode("BMP", (3000, 150))
    assert len(image) > 10**6
    visit.upload(image, "image/bmp")  # the server would refuse it
    visit.wait_for_evidence()


def test_the_token_is_taken_from_the_address_or_asked_for(
    browser: Any, start_at_port: Any, predictor: Predictor, encode: Encode
) -> None:
    with start_at_port(predictor, token="open sesame") as server:
        url = f"http://127.0.0.1:{server.port}/"
        page = browser.new_page()
        visit = Visit(page, url)
        page.goto(f"{url}#token=open%20sesame")
        visit.wait_for_model()
        assert page.url == url
        visit.upload(encode())
        visit.wait_for_evidence()
        page.close()
        page = browser.new_page()
        asked = Visit(page, url)
        page.goto(url)
        for given in ("wrong token", "open sesame"):
            page.wait_for_selector("#token-dialog[open]")
            page.fill("#token", given)
            page.keyboard.press("Enter")
        asked.wait_for_model()
        page.close()
    assert visit.wrong + asked.wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phones_have_a_camera_and_no_sideways_scrolling(
    browser: Any, served: str, encode: Encode, scheme: str
) -> None:
    page = browser.new_page(
        viewport={"width": 360, "height": 740},
        color_scheme=scheme,
        is_mobile=True,
        has_touch=True,
    )
    visit = Visit(page, served)
    page.goto(served)
    assert page.is_visible("text=Take a photo")
    assert page.get_attribute("#camera", "capture") == "environment"
    visit.upload(encode())
    visit.wait_for_evidence()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.is_visible("text=Take a photo")
    small = page.eval_on_selector_all(
        "main button, main .button, select, input[type=range], .segmented span",
        """all => all.filter(each => each.checkVisibility())
            .filter(each => each.getBoundingClientRect().height < 32).length""",
    )
    assert small == 0
    assert contrast(page, "body") > 7
    assert contrast(page, ".note") > 4.5
    assert contrast(page, ".button.primary") > 4.5
    page.close()
    assert visit.wrong == []


def contrast(page: Any, selector: str) -> float:
    """The contrast of an element's text with what is behind it."""
    colours = page.eval_on_selector(
        selector,
        """element => {
            const read = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
            const text = getComputedStyle(element).color;
            const bare = "rgba(0, 0, 0, 0)";
            while (getComputedStyle(element).backgroundColor === bare)
                element = element.parentElement;
            return [read(text), read(getComputedStyle(element).backgroundColor)];
        }""",
    )

    def luminance(colour: list[float]) -> float:
        parts = [each / 255 for each in colour]
        linear = [
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4
            for each in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def test_everything_has_a_name_for_screen_readers(visit: Visit, encode: Encode) -> None:
    visit.upload(encode())
    visit.wait_for_evidence()
    unnamed = visit.page.evaluate(
        """() => [...document.querySelectorAll('img, canvas, button, input, select')]
            .filter((each) => each.checkVisibility())
            .filter((each) => !(each.alt !== undefined && each.tagName === 'IMG'
                    ? each.hasAttribute('alt')
                    : each.getAttribute('aria-label') || each.textContent.trim()
                        || each.labels?.length))
            .map((each) => each.outerHTML)"""
    )
    assert unnamed == []
    assert visit.page.get_attribute("html", "lang") == "en"
    headings = visit.page.locator("h1, h2").evaluate_all(
        "all => all.filter(each => each.checkVisibility()).map(each => each.tagName)"
    )
    assert headings[0] == "H1"
    assert headings.count("H1") == 1


def test_the_description_of_the_api_needs_no_script(
    browser: Any, served: str, tmp_path: Path
) -> None:
    page = browser.new_page(java_script_enabled=False)
    visit = Visit(page, served)
    page.goto(f"{served}docs")
    assert "POST /predict" in visit.text("main")
    page.goto(served)
    assert "needs JavaScript" in visit.text("main")
    page.close()
    page = browser.new_page()
    page.goto(f"{served}docs")
    page.wait_for_function("document.body.innerText.includes(location.origin)")
    assert "127.0.0.1:8000" not in page.inner_text("main")
    page.close()
    assert visit.wrong == []
