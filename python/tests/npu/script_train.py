"""Trains the GPT on the stand-in and prints, as JSON, what the steps did.

usage: script_train.py STEPS [CAP_BYTES]
"""

import hashlib
import json
import sys

import torch
import torch_npu  # noqa: F401
from standin import DEVICE, Training, ledger

n_steps = int(sys.argv[1])
cap_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else None
if cap_bytes is not None:
    import smartswap

    smartswap.enable(cap_bytes, device=DEVICE, min_block="1MiB", config=sys.argv[3])

training = Training(DEVICE)
steps = []
for _ in range(n_steps):
    step = {"loss": training.step().hex()}
    if cap_bytes is not None:
        now = smartswap.stats()
        step |= {key: now[key] for key in ("stage", "misses", "rescues", "plan", "swapped_out_bytes", "recomputed_ops")}
    steps.append(step)
torch.npu.synchronize()
weights = hashlib.sha256()
for weight in training.model.state_dict().values():
    weights.update(weight.cpu().numpy().tobytes())
peak_bytes = torch.npu.max_memory_allocated()
print(
    json.dumps(
        {
            "steps": steps,
            "weights": weights.hexdigest(),
            "peak_bytes": peak_bytes,
            "ledger": ledger(),
        }
    )
)
