"""Trains the GPT on the stand-in and prints, as JSON, what the steps did.

usage: script_train.py STEPS [CAP_BYTES SETTINGS]
"""

import hashlib
import json
import sys

import torch
import torch_npu  # noqa: F401
from standin import DEVICE, Training, ledger

COUNTERS = ("stage", "misses", "rescues", "swapped_out_bytes")

n_steps = int(sys.argv[1])
is_capped = len(sys.argv) > 2
if is_capped:
    import smartswap

    smartswap.enable(int(sys.argv[2]), device=DEVICE, min_block="1MiB", config=sys.argv[3])

training = Training(DEVICE)
steps = []
for _ in range(n_steps):
    step = {"loss": training.step().hex(), "copied_out_bytes": ledger()["copied_out_bytes"]}
    if is_capped:
        now = smartswap.stats()
        step |= {name: now[name] for name in COUNTERS}
    steps.append(step)
peak_bytes = torch.npu.max_memory_allocated()
weights = hashlib.sha256()
for weight in training.model.state_dict().values():
    weights.update(weight.cpu().numpy().tobytes())
found = {
    "steps": steps,
    "weights": weights.hexdigest(),
    "peak_bytes": peak_bytes,
    "ledger": ledger(),
}
print(json.dumps(found))
