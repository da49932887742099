"""`python -m baechi`."""

from baechi.cli import app

app(prog_name="baechi")
