"""Record what torch's allocator for CUDA does on this machine's GPU, for `test_recorded.py` to replay.

    PYTHONPATH=tests python -m backend.virtual.machine.recording roomy traces/h100_roomy.json.gz

`roomy` has all the memory, `full` 1.5 GiB, so that the allocator must give back and try again, and sometimes
fails. With `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` segments expand. Recording begins before the
first allocation of the process, so a replay begins with nothing.
"""

import gzip
import json
import os
import random
import sys

import torch

EVENTS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom",
)  # fmt: skip
FULL_BYTES = 1536 << 20


def at_random(seed: int, count: int, streams: int, largest: int, most_bytes: int) -> None:
    """Allocate and release blocks of up to `2**largest` bytes on streams; another one uses some of them."""
    draw, held, held_bytes = random.Random(seed), [], 0
    ours = [torch.cuda.default_stream(), *[torch.cuda.Stream() for _ in range(streams - 1)]]
    for _ in range(count):
        if (held and draw.random() < 0.46) or held_bytes > most_bytes:
            tensor = held.pop(draw.randrange(len(held)))
            held_bytes -= tensor.numel()
            if draw.random() < 0.2:
                tensor.record_stream(ours[draw.randrange(streams)])
            del tensor
            continue
        size_bytes = int(2 ** draw.uniform(0, largest))
        with torch.cuda.stream(ours[draw.randrange(streams)]):
            try:
                held.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))
                held_bytes += size_bytes
            except torch.OutOfMemoryError:
                while held_bytes > most_bytes // 2:
                    held_bytes -= held.pop(draw.randrange(len(held))).numel()


def train(steps: int, shapes: tuple[tuple[int, int], ...]) -> None:
    """Steps of a small GPT-2 with Adam, batches of several shapes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=256, n_layer=2, n_head=4, vocab_size=5000, n_positions=256)
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        ids = torch.randint(0, 5000, shapes[step % len(shapes)], device="cuda")
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main(what: str, path: str) -> None:
    """Run one of the two programs, and write what the allocator did."""
    torch.cuda.init()
    limit_bytes = None
    if what == "full":
        total_bytes = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(FULL_BYTES / total_bytes)
        limit_bytes = int(FULL_BYTES / total_bytes * total_bytes)
    torch.cuda.memory._record_memory_history(max_entries=10**7, context=None, stacks="python")
    if what == "full":
        at_random(3, 2500, 1, 28, 1300 << 20)
        at_random(4, 2500, 3, 27, 1300 << 20)
        train(3, ((24, 200), (32, 150), (8, 64)))
    else:
        at_random(1, 2500, 1, 27, 2 << 30)
        at_random(2, 2500, 3, 26, 2 << 30)
        train(4, ((8, 128), (4, 200), (8, 64)))
    torch.cuda.synchronize()
    rows, addresses, streams = [], {}, {}
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        address = addresses.setdefault(entry.get("addr", -1), len(addresses))
        stream = streams.setdefault(entry["stream"], len(streams))
        rows.append((EVENTS.index(entry["action"]), address, entry["size"], stream))
    body = {
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0),
        "expandable": "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        "limit_bytes": limit_bytes,
        "reserved_bytes": torch.cuda.memory_reserved(),
        "addresses": sorted(addresses, key=lambda address: addresses[address]),
        "rows": rows,
    }
    with gzip.open(path, "wt") as file:
        json.dump(body, file, separators=(",", ":"))


if __name__ == "__main__":
    main(*sys.argv[1:3])
