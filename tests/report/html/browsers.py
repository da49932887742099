"""The browser that pages are opened in, if there is one."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((path for path in map(shutil.which, BROWSERS) if path), None)

NEEDS_BROWSER = pytest.mark.skipif(
    FOUND is None, reason=f"no browser: none of {', '.join(BROWSERS)} is installed"
)
