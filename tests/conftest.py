"""What every test may count on."""

import gc
import os

import pytest
import torch
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configs: nothing is ever fetched
gc.set_threshold(10_000, 20, 20)  # else a twentieth of the suite's time; and what only it frees shows sooner
torch.set_num_threads(1)  # the models are tiny, the tests run side by side, and bits depend on it

settings.register_profile("same", derandomize=True)  # `--hypothesis-profile=default` takes its chances
settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: "test_accelerator.py" not in item.nodeid)
