"""What every test may count on."""

import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configs: nothing is ever fetched
torch.set_num_threads(1)  # the models are tiny, the tests run side by side, and bits depend on it
