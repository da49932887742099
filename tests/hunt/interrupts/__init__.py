"""Interrupts and exceptions at random moments of a step: the next one is right. See `test_interrupts.py`."""
