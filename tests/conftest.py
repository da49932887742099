"""What every test may count on."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configs: nothing is ever fetched
