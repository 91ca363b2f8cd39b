"""Trains a small model on the CPU and prints a sum of its weights, for `cargo xtask wheel`.

Nothing here knows of SmartSwap; where it is loaded, its adapter must be one of the wheel's.
"""

import hashlib
import sys

import torch

torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(8):
    loss = model(torch.randn(512, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
sum_of_bytes = hashlib.sha256(bytes(weights.view(torch.uint8).tolist())).hexdigest()
print(torch.__version__, sum_of_bytes)

smartswap = sys.modules.get("smartswap")
if smartswap is not None:
    swapped = smartswap.stats()["swapped_out_bytes"]
    adapter = smartswap._native.adapter().__file__
    if not swapped > 16 << 20:
        sys.exit(f"only {swapped} bytes were swapped out: the cap was not felt")
    if "/smartswap/adapters/torch" not in adapter or not adapter.startswith(sys.prefix):
        sys.exit(f"{adapter} is not an adapter of the wheel")
    print(adapter.removeprefix(sys.prefix), file=sys.stderr)
elif len(sys.argv) > 1:
    sys.exit("SMARTSWAP_MEMORY was set, and SmartSwap is not loaded")
