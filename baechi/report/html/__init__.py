"""The report as one page that needs nothing else: no network, no server, no other file.

In:    what `report.facts` says, and `page.html`, `style.css`, scripts in the order of
       `page.SCRIPTS`.
Out:   one HTML file.
Start: `page`; `data` and `tree` are what the scripts read.
"""

from baechi.report.html.page import to_html
from baechi.report.html.pipeline_page import pipeline_to_html

__all__ = ["pipeline_to_html", "to_html"]
