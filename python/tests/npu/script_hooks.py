"""Trains around a C++ operator of one's own, and prints, as JSON, what came out.

usage: script_hooks.py OPERATOR.so [CAP_BYTES [without-hooks]]
"""

import hashlib
import json
import sys

import torch
import torch_npu  # noqa: F401
from gated import Gated, op
from standin import DEVICE, ledger
from torch import Tensor, nn

ROWS, WIDTH, LAYERS, STEPS = 2048, 256, 4, 4

op.use_hooks("without-hooks" not in sys.argv)
if len(sys.argv) > 2:
    import smartswap

    smartswap.enable(int(sys.argv[2]), device=DEVICE, min_block="1MiB")


class Layer(nn.Module):
    """A gated linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The layer around the operator."""
        return x + Gated.apply(self.value(x), self.gate(x))


torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
digest = hashlib.sha256()
for _ in range(STEPS):
    loss = model(torch.randn(ROWS, WIDTH).to(DEVICE)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    digest.update(loss.item().hex().encode())
for weight in model.parameters():
    digest.update(weight.detach().cpu().numpy().tobytes())
told = {"digest": digest.hexdigest(), "peak_bytes": torch.npu.max_memory_allocated()}
print(json.dumps(told | {"ledger": ledger()}))
