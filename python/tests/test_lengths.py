"""Batches of changing lengths under a cap: the same bits, planned for as one family, and a batch
that is longer than all before."""

import json
import subprocess

import processes
import pytest
from smartswap import program

# It trains until its plans are settled, and as long again; plainly as long.
PROGRAM = """
import hashlib, json, sys
import torch
stats, explain = dict, dict
if sys.argv[1] != "plain":
    import smartswap
    memory = None if sys.argv[1] == "uncapped" else sys.argv[1]
    smartswap.enable(memory, device="host", min_block=sys.argv[5])
    stats, explain = smartswap.stats, smartswap.explain
torch.manual_seed(0)
torch.set_num_threads(1)
is_branch = False

class Activation(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.silu(x) if is_branch else torch.nn.functional.gelu(x)

layers = [torch.nn.Linear(128, 128) for _ in range(10)]
parts = [
    part
    for at, layer in enumerate(layers)
    for part in (layer, Activation() if at % 3 else torch.nn.GELU(), torch.nn.Dropout(0.1))
]
model = torch.nn.Sequential(*parts)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lengths = torch.Generator().manual_seed(5)
n_steps, n_stable, losses, steps, live = int(sys.argv[2]), 0, [], [], 0

def train(length):
    before = stats()
    loss = model(torch.randn(length, 128)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    after = stats()
    keys = ("misses", "rescues", "swapped_out_bytes") if after else ()
    steps.append({key: after[key] - before[key] for key in keys})
    steps[-1]["calls"] = sum(after["last_memory_calls"].values()) if after else 0
    made = [sum(told.get("memory_calls", {}).values()) for told in (before, after)]
    steps[-1]["calls_made"] = made[1] - made[0]
    steps[-1]["is_warm"] = after.get("stage") != "WarmUp"
    steps[-1]["kinds"] = after["recipes"]["sure_kinds"] if after else 0

while len(steps) < n_steps and n_stable < 40:
    is_branch = sys.argv[4] == "branches" and len(steps) > 8 and len(steps) % 3 == 1
    train(16 * int(torch.randint(52, 129, (), generator=lengths)))
    if len(steps) % 7 == 0:
        with torch.no_grad():
            model(torch.randn(400, 128))
    n_stable += stats().get("stage") == "Stable"
families = explain().get("families")
if families:
    smartswap.save_report(sys.argv[3])
train(8192)
bits = hashlib.sha256()
for parameter in model.parameters():
    bits.update(parameter.detach().clone().numpy().tobytes())
print(json.dumps({
    "losses": losses, "weights": bits.hexdigest(), "steps": steps, "families": families,
    "stats": stats(),
}))
"""


def train(memory, tmp_path, n_steps=400, steps="alike", min_block="64KiB"):
    words = (memory, n_steps, tmp_path, steps, min_block)
    return processes.train(tmp_path, PROGRAM, *words, patience_s=400)[0]


@pytest.mark.parametrize("memory", ["uncapped", "64MiB"])
def test_batches_of_changing_lengths_with_room_for_all_soon_make_few_memory_calls(
    tmp_path, memory
):
    with_room = train(memory, tmp_path)
    plain = train("plain", tmp_path, len(with_room["losses"]) - 1)
    assert with_room["losses"] == plain["losses"]
    assert with_room["weights"] == plain["weights"]
    *steps, _ = with_room["steps"]
    assert sum(step["swapped_out_bytes"] for step in steps) == 0
    assert max(step["calls_made"] for step in steps[:4]) > 20, "its blocks are small"
    # A chunk of another size serves, so that each next length makes none of its own. Evaluations
    # do beside a layout, and falling asleep once, whenever a step is short enough for it.
    settled = [step["calls_made"] for step in steps[-20:]]
    assert sorted(settled)[len(settled) // 2] == 0, settled


def test_batches_of_changing_lengths_are_planned_for_at_any_size(tmp_path):
    capped = train("24MiB", tmp_path)
    plain = train("plain", tmp_path, len(capped["losses"]) - 1)
    assert capped["losses"] == plain["losses"]
    assert capped["weights"] == plain["weights"]
    *steps, outlier = capped["steps"]
    settled = steps[-20:]
    assert len(steps) < 400, "it never was Stable"
    assert sum(step["swapped_out_bytes"] for step in settled) > 0, "nothing had to leave"
    assert sum(step["misses"] + step["rescues"] for step in settled) == 0, settled
    # An evaluation takes memory that the step behind it maps again.
    assert sum(step["calls"] <= 2 for step in settled) > len(settled) / 2, settled
    # What makes one size again is found out until there is a plan for all sizes, and not then.
    kinds = [step["kinds"] for step in steps if step["is_warm"]]
    assert kinds[0] > 0 and kinds == kinds[:1] * len(kinds), kinds
    lowest = capped["families"][0]["levels"][0]
    assert lowest["steps"] > 10 and lowest["misses"] + lowest["rescues"] == 0
    assert lowest["plan_actions"] > 0 and lowest["predicted_ratio"] > 1 - 1e-9
    # It is four times as long as any before, and was planned for as well.
    assert outlier["swapped_out_bytes"] > 3 * max(step["swapped_out_bytes"] for step in settled)
    assert outlier["rescues"] == 0, outlier
    assert capped["stats"]["stage"] == "Stable"
    # What was recorded can be planned for elsewhere, each size beside what was predicted of it.
    done = subprocess.run(
        [program.path(), "plan", tmp_path / "steps.json", "--memory", "24MiB", "--json"],
        capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    members = json.loads(done.stdout)["members"]
    assert len(members) == len(capped["families"][0]["recorded_probe_bytes"]) >= 3
    for member in members:
        assert member["step_us"] is not None, member
        peaks = member["predicted_peak_bytes"] / member["recorded_peak_bytes"]
        assert 0.95 < peaks < 1.05, member


def test_what_is_below_min_block_in_shorter_batches_lies_where_it_does_in_longer_ones(tmp_path):
    # Activations have 416 to 1,024 KiB.
    capped = train("24MiB", tmp_path, min_block="512KiB")
    plain = train("plain", tmp_path, len(capped["losses"]) - 1)
    assert capped["losses"] == plain["losses"]
    assert capped["weights"] == plain["weights"]
    settled = capped["steps"][-21:-1]
    assert len(capped["steps"]) < 400, "it never was Stable"
    assert all(step["swapped_out_bytes"] > 0 for step in settled), "short batches lie elsewhere"
    assert sum(step["misses"] + step["rescues"] for step in settled) == 0, settled
    assert sum(step["calls"] <= 2 for step in settled) > len(settled) / 2, settled
    lowest = capped["families"][0]["levels"][0]
    assert lowest["steps"] > 10 and lowest["misses"] + lowest["rescues"] == 0


def test_steps_of_changing_sizes_that_use_other_operators_too_go_by_the_same_plan(tmp_path):
    capped = train("24MiB", tmp_path, steps="branches")
    plain = train("plain", tmp_path, len(capped["losses"]) - 1, steps="branches")
    assert capped["losses"] == plain["losses"]
    assert capped["weights"] == plain["weights"]
    settled = capped["steps"][-19:-1]
    assert capped["stats"]["branches"] >= 6, capped["stats"]
    assert sum(step["swapped_out_bytes"] for step in settled) > 0, "nothing had to leave"
    # Without the plan a step misses each block that is away, and there are dozens.
    assert sum(step["misses"] for step in settled) <= 2 * len(settled), settled
