"""Batches that are loaded ahead of their use, so that each lives into the next step: from the first
plan on the step goes as planned, with the same bits."""

import processes

# Under the cap it trains until some steps were Stable, however busy the machine is; plainly as
# long. A batch is as large as a weight, so that its size does not tell it from one.
PROGRAM = """
import hashlib, json, sys
import torch
stats = dict
if sys.argv[1] != "plain":
    import smartswap
    smartswap.enable("72MiB", device="host", min_block="256KiB", config=sys.argv[2])
    stats = smartswap.stats
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(512, 512) for _ in range(12)]
model = torch.nn.Sequential(
    *[part for layer in layers for part in (layer, torch.nn.GELU(), torch.nn.Dropout(0.1))]
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
numbers = torch.Generator().manual_seed(1)

def load():
    return [torch.randn(512, 512, generator=numbers) for _ in range(2)]

def loader():
    ahead = load()
    while True:
        batch, ahead = ahead, load()
        yield batch

batches = loader()
n_steps = int(sys.argv[3]) if len(sys.argv) > 3 else 400
losses, steps, n_stable = [], [], 0
while len(losses) < n_steps and n_stable < 5:
    before = stats()
    inputs, targets = next(batches)
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    after = stats()
    if after:
        step = {key: after[key] - before[key] for key in ("misses", "rescues", "swapped_out_bytes")}
        step["remade"] = after["recomputed_ops"] - before["recomputed_ops"]
        step["reported"] = after["reported_steps"] - before["reported_steps"]
        step["calls"] = sum(after["last_memory_calls"].values())
        steps.append({"stage": before["stage"], "plan": before["plan"], **step})
    n_stable += stats().get("stage") == "Stable"
bits = hashlib.sha256()
for parameter in model.parameters():
    bits.update(parameter.detach().clone().numpy().tobytes())
print(json.dumps({"losses": losses, "weights": bits.hexdigest(), "steps": steps}))
"""


def train(tmp_path, *words):
    return processes.train(tmp_path, PROGRAM, *words)[0]


def test_a_batch_that_is_loaded_ahead_is_where_the_plan_has_it(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text("slow_ratio = 1000000.0\n")
    capped = train(tmp_path, "capped", config)
    plain = train(tmp_path, "plain", config, len(capped["losses"]))
    assert capped["losses"] == plain["losses"]
    assert capped["weights"] == plain["weights"]
    steps = capped["steps"]
    # The step after a change of plan finds blocks where the plan before has left them.
    pairs = zip(steps, steps[1:])
    planned = [step for before, step in pairs if step["plan"] == before["plan"] != 0]
    assert planned[0]["stage"] == "SearchPolicy", "the first plan was not tried"
    assert sum(step["rescues"] for step in planned) == 0, steps
    stable = [step for step in planned if step["stage"] == "Stable"]
    assert len(stable) >= 3, "it never was Stable"
    # What a step moved is counted when it reports, which may be while the next one runs.
    reported = [step for step in stable if step["reported"] > 0]
    assert sum(step["reported"] for step in reported) >= 3, stable
    assert all(step["swapped_out_bytes"] + step["remade"] > 0 for step in reported), stable
    assert sum(step["misses"] for step in stable) == 0, stable
    assert max(step["calls"] for step in stable) <= 16, stable
