"""Trains the GPT on the stand-in and prints, as JSON, what the steps did.

Under a cap it ends after a few Stable steps, at the latest after STEPS. It can save a checkpoint
at the first of them, and go on from one.
"""

import argparse
import hashlib
import json

import torch
import torch_npu
from standin import DEVICE, Training, ledger, moments_on_host

STABLE_STEPS = 4
COUNTERS = ("stage", "misses", "rescues", "swapped_out_bytes", "recomputed_ops")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("steps", type=int)
parser.add_argument("--cap", type=int, help="in bytes")
parser.add_argument("--settings", default="settled.toml")
parser.add_argument("--virtual-optimizer")
parser.add_argument("--save")
parser.add_argument("--resume")
wishes = parser.parse_args()
if wishes.cap:
    import smartswap

    smartswap.enable(wishes.cap, device=DEVICE, min_block="1MiB", config=wishes.settings)


def weights_of(model: torch.nn.Module) -> str:
    """A number for all bits of a model's weights, and the state of the generator beside it."""
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.cpu().numpy().tobytes())
    return f"{digest.hexdigest()} {torch.npu.get_rng_state(DEVICE).tolist()}"


def remade() -> list[str]:
    """The operators whose outputs the plan drops, to make them again."""
    decisions = smartswap.explain()["decisions"]
    return sorted({each["made_by"] for each in decisions if each["treatment"] == "recompute"})


training = Training(DEVICE, dropout=0.1)
if wishes.virtual_optimizer:
    smartswap.virtual_optimizer(training.optimizer, wishes.virtual_optimizer)
if wishes.resume:
    training.resume(torch.load(wishes.resume))
steps = []
n_stable = 0
while len(steps) < wishes.steps and n_stable < STABLE_STEPS:
    step = {"loss": training.step().hex(), "copied_out_bytes": ledger()["copied_out_bytes"]}
    if wishes.cap:
        now = smartswap.stats()
        step |= {name: now[name] for name in COUNTERS}
        n_stable += now["stage"] == "Stable"
        if wishes.save and n_stable == 1:
            torch.save(training.state(), wishes.save)
            step["saved"] = True
            wishes.save = None
    else:
        step["weights"] = weights_of(training.model)
    steps.append(step)
found = {
    "torch_npu": torch_npu.__version__,
    "steps": steps,
    "peak_bytes": torch.npu.max_memory_allocated(),
    "ledger": ledger(),
    "moments_on_host": moments_on_host(training.optimizer),
    "remade": remade() if wishes.cap else [],
}
steps[-1]["weights"] = weights_of(training.model)
print(json.dumps(found))
