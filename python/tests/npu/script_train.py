"""Trains the GPT on the stand-in and prints, as JSON, what the steps did.

Under a cap it ends after a few Stable steps, at the latest after STEPS.

usage: script_train.py STEPS [CAP_BYTES SETTINGS]
"""

import hashlib
import json
import sys

import torch
import torch_npu  # noqa: F401
from standin import DEVICE, Training, ledger

STABLE_STEPS = 4
COUNTERS = ("stage", "misses", "rescues", "swapped_out_bytes")

n_steps = int(sys.argv[1])
is_capped = len(sys.argv) > 2
if is_capped:
    import smartswap

    smartswap.enable(int(sys.argv[2]), device=DEVICE, min_block="1MiB", config=sys.argv[3])


def weights_of(model: torch.nn.Module) -> str:
    """A number for all bits of a model's weights."""
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.cpu().numpy().tobytes())
    return digest.hexdigest()


training = Training(DEVICE)
steps = []
n_stable = 0
while len(steps) < n_steps and n_stable < STABLE_STEPS:
    step = {"loss": training.step().hex(), "copied_out_bytes": ledger()["copied_out_bytes"]}
    if is_capped:
        now = smartswap.stats()
        step |= {name: now[name] for name in COUNTERS}
        n_stable += now["stage"] == "Stable"
    else:
        step["weights"] = weights_of(training.model)
    steps.append(step)
peak_bytes = torch.npu.max_memory_allocated()
steps[-1]["weights"] = weights_of(training.model)
print(json.dumps({"steps": steps, "peak_bytes": peak_bytes, "ledger": ledger()}))
