"""The hunt: random models, run in random ways, against the plain model. See `test_hunt.py`."""
