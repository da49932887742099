"""The report as one page that needs nothing else: no network, no server, no other file.

In:    what `report.facts` or `report.pipeline.facts` says, and `page.html`, `style.css`, scripts in the order
       of `SCRIPTS`.
Out:   one HTML file.
Start: `page`, `pipeline_page`, then `parts`; `data`, `pipeline_data` and `tree` are what the scripts read.
"""
