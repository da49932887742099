"""The browser that pages are opened in, if there is one."""

import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FOUND = next((path for path in map(shutil.which, BROWSERS) if path), None)

NEEDS_BROWSER = pytest.mark.skipif(
    FOUND is None, reason=f"no browser: none of {', '.join(BROWSERS)} is installed"
)

LIGHT = """
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((part) => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
"""
"""JavaScript: `light`, the relative luminance of a colour (WCAG 2.1), for contrasts."""
