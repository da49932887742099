"""Faults that the tests must find: each protection is taken away once. See `test_faults.py`."""
