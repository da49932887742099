"""The report as one page that needs nothing else: no network, no server, no other file.

    page    the page: header, pictures, tables
    data    what the pictures show, for the scripts
    tree    the layers as a tree of modules, for folding

Beside them the page's own files, put into it as they are: `page.html`, `style.css`, and the scripts
in the order of `page.SCRIPTS`.
"""

from baechi.report.html.page import to_html

__all__ = ["to_html"]
