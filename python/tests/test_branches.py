"""A loop in which some steps log, evaluate, or do other work in between: all go by one plan."""

import processes

PROGRAM = """
import hashlib, json, sys
import torch
if sys.argv[1] != "plain":
    import smartswap
    smartswap.enable("72MiB", device="host", min_block="256KiB", config=sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(512, 512) for _ in range(12)]
model = torch.nn.Sequential(
    *[part for layer in layers for part in (layer, torch.nn.GELU(), torch.nn.Dropout(0.1))]
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
logged, seen = [], []
for step in range(48):
    if step % 6 == 5:
        model.eval()
        for graph in (True, False, True):
            with torch.set_grad_enabled(graph):
                logged.append(model(torch.randn(512, 512)).square().mean().item())
        model.train()
    loss = model(torch.randn(512, 512)).square().mean()
    loss.backward()
    if step % 4 == 3:
        norms = [layer.weight.grad.norm() for layer in layers]
        logged += [loss.item(), torch.stack(norms).max().item(), float(loss * 2 + 1)]
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] != "plain":
        seen.append(smartswap.stats())
bits = hashlib.sha256()
for parameter in model.parameters():
    bits.update(parameter.detach().clone().numpy().tobytes())
steps = [[one["stage"], one["plan"], one["branches"], one["misses"]] for one in seen]
by_stage = seen[-1]["steps_by_stage"] if seen else {}
moved = seen[-1]["swapped_out_bytes"] + seen[-1]["recomputed_ops"] if seen else 0
print(json.dumps({
    "logged": logged, "weights": bits.hexdigest(), "steps": steps, "by_stage": by_stage,
    "moved": moved,
}))
"""

ELSEWHERE = """
import json, sys
import torch
import smartswap
smartswap.enable("40MiB", device="host", min_block="256KiB", config=sys.argv[1])
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(12)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
counted = []
for step in range(24):
    # As many as have come by now, as from workers that load batches.
    for size in range(step % 5):
        loaded = torch.empty(size, device="meta")
        loaded.neg().set_(loaded)
        torch.randperm(3, device="meta")
    model(torch.randn(512, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    counted.append(smartswap.stats()["branches"])
print(json.dumps([counted, smartswap.stats()["steps_by_stage"]]))
"""

POOL = """
import hashlib, json, random, sys
import torch
if sys.argv[1] != "plain":
    import smartswap
    smartswap.enable("14MiB", device="host", min_block="64KiB", config=sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(16)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pool, planned = [torch.zeros(256)], []
for taken in random.Random(1).sample(range(40), 40):
    made = model(torch.randn(512, 256))
    # As from a pool of images, of which each step takes another number.
    for row in range(taken):
        pool.append(made[row].detach().clone())
    loss = made.square().mean() + torch.stack(pool[-20:]).mean() * made.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1] != "plain":
        planned.append(smartswap.stats()["plan"] != 0)
weights = torch.cat([p.detach().flatten() for p in model.parameters()]).clone().numpy()
stats = smartswap.stats() if sys.argv[1] != "plain" else {}
moved = stats.get("swapped_out_bytes", 0) + stats.get("recomputed_ops", 0)
digest = hashlib.sha256(weights.tobytes()).hexdigest()
print(json.dumps([digest, moved, planned, stats.get("steps_by_stage")]))
"""


def train(tmp_path, program, *words):
    return processes.train(tmp_path, program, *words, processes.PATIENT)[0]


def test_steps_that_log_or_evaluate_go_by_the_plan_of_the_others(tmp_path):
    plain, capped = (train(tmp_path, PROGRAM, word) for word in ("plain", "capped"))
    assert capped["logged"] == plain["logged"]
    assert capped["weights"] == plain["weights"]
    assert capped["moved"] > 0, "nothing was away"
    # The first steps are recorded; no step that logs or evaluates is recorded for its own sake.
    assert capped["by_stage"]["WarmUp"] <= 6, capped["by_stage"]
    # From the first plan on each step that differs follows the plan at hand; how long the search
    # for the best goes on depends on how steady steps are. The last report may still be owed.
    first = [at for at, step in enumerate(capped["steps"]) if step[1] != 0][0]
    differ = [at for at in range(first, 48) if at % 4 == 3 or at % 6 == 5]
    assert len(differ) >= 14
    assert capped["steps"][-1][2] >= len(differ) - 2, capped["steps"]
    assert "WarmUp" not in {step[0] for step in capped["steps"][first:]}, capped["steps"]


def test_what_runs_on_another_device_is_no_part_of_the_step(tmp_path):
    branches, by_stage = train(tmp_path, ELSEWHERE)
    # Else each count of such operators would be a kind of step of its own.
    assert branches[-1] == 0, branches
    assert by_stage["WarmUp"] <= 3, by_stage
    assert by_stage.get("SearchPolicy", 0) + by_stage.get("Stable", 0) >= 21, by_stage


def test_steps_of_which_no_two_are_alike_go_by_a_plan_for_one_of_them(tmp_path):
    plain, capped = (train(tmp_path, POOL, word) for word in ("plain", "capped"))
    weights, moved, planned, by_stage = capped
    assert weights == plain[0]
    assert moved > 0, "nothing was away"
    # Six new kinds in a row tell that there will be no other.
    assert by_stage["WarmUp"] <= 8 and by_stage["Stable"] > 0, by_stage
    assert sum(planned) >= 30, planned
