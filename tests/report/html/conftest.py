"""A page in a browser without a window."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.html.browsers import FOUND


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        yield (launched := started.chromium.launch(executable_path=FOUND, args=["--no-sandbox"]))
        launched.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page; at the end nothing may have gone wrong on it, and nothing else been asked for."""
    wrong: list[str] = []
    contexts = []

    def opened(text: str, scheme: str = "light", width: int = 1280) -> Any:
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: request.url == file.as_uri() or wrong.append(request.url))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
