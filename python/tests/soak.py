"""A long run of changing lengths, with evaluations, checkpoints and loader workers in between.

`soak.py DEVICE STEPS` trains under a cap and counts, every tenth step, what the kernel says:
device memory, host memory, file descriptors and mappings. It prints each hundredth, and fails if
one of them still grows after the first two hundred steps.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

import smartswap
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

DEVICE, STEPS = sys.argv[1], int(sys.argv[2])
LENGTHS = (32, 48, 64, 80, 96, 128)
WIDTH, VOCABULARY, BATCH = (64, 128, 4) if DEVICE == "cpu" else (1024, 8192, 64)
CAP = "8MiB" if DEVICE == "cpu" else "2GiB"
EPOCH, EVALUATE, SAVE, MEASURE, SHOW = 100, 20, 50, 10, 100
SETTLED = 200


class Lines(IterableDataset):
    """As many batches as an epoch has, each of one length, from each of two workers."""

    def __init__(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        draw = random.Random(f"{self.epoch} {worker.id}")
        for _ in range(EPOCH // worker.num_workers):
            length = draw.choice(LENGTHS)
            numbers = [[draw.randrange(VOCABULARY) for _ in range(length)] for _ in range(BATCH)]
            yield torch.tensor(numbers)


class Model(nn.Module):
    """A transformer with dropout."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def device_bytes():
    """What the kernel, or the GPU's driver, holds for the device."""
    if DEVICE != "cpu":
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return total_bytes - free_bytes
    for entry in Path("/proc/self/fd").iterdir():
        if entry.exists() and "npu-sys host device" in os.readlink(entry):
            return entry.stat().st_blocks * 512
    raise AssertionError("there is no software device")


def measure():
    status = Path("/proc/self/status").read_text()
    # The software device's memory is shared, and counts once for each address it is mapped at.
    host_kib = sum(int(status.partition(f"{kind}:")[2].split()[0]) for kind in HOST)
    mappings = Path("/proc/self/maps").read_text()
    of_device = mappings.count("npu-sys host device")
    return {
        "device MiB": device_bytes() / 2**20,
        "host MiB": host_kib / 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": mappings.count("\n") - of_device,
        "device mappings": of_device,
    }


HOST = ("RssAnon", "RssFile")
# Pinned memory comes in regions of so many MiB, and a last one may be wanted later.
REGION = 16 if DEVICE == "cpu" else 256
# How much more than at its highest by then each may be at the end, with noise of the system's
# allocator. The same device memory comes to be mapped at more addresses until all are met, up to
# 1,500 of them, or fewer where another plan is laid out; what lies between them counts as well.
SLACK = {
    "device MiB": 1.0,
    "host MiB": REGION + 24.0,
    "descriptors": 0,
    "mappings": 150,
    "device mappings": 1000,
}


def main():
    torch.manual_seed(0)
    smartswap.enable(CAP, device=DEVICE, host_memory="1GiB" if DEVICE == "cpu" else "16GiB")
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    file = os.path.join(tempfile.mkdtemp(), "state.pt")
    step, early, late = 0, [], []
    for epoch in range(-(-STEPS // EPOCH)):
        for tokens in DataLoader(Lines(epoch), batch_size=None, num_workers=2):
            optimizer.zero_grad()
            loss = loss_of(model, tokens.to(DEVICE))
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVALUATE == 0:
                model.eval()
                with torch.no_grad():
                    loss_of(model, tokens.to(DEVICE).repeat(2, 1)).item()
                model.train()
            if step % SAVE == 0:
                torch.save([model.state_dict(), optimizer.state_dict()], file)
                weights, state = torch.load(file)
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
                del weights, state
            if step % MEASURE == 0:
                # How many mappings the device takes hangs on the length of the step before.
                measured = measure()
                (early if step <= SETTLED else late).append(measured)
            if step % SHOW == 0:
                shown = ", ".join(f"{name} {value:.0f}" for name, value in measured.items())
                stats = smartswap.stats()
                print(f"{step}: {shown}; {stats['stage']}, loss {loss.item():.3f}", flush=True)
    assert smartswap.stats()["swapped_out_bytes"] > 0, "nothing moved"
    for name, slack in SLACK.items():
        before, after = (max(row[name] for row in rows) for rows in (early, late))
        assert after <= before + slack, f"{name} grew from {before} to {after}"
    print("flat")


main()
