"""Trains a model around a C++ operator of one's own, under a cap on device memory.

    python gated.py --memory 48MiB

The operator (gated_op.cpp, or gated_op.cu with --device cuda) works on raw pointers, so only its
hooks (NPUSwapManager.h) tell the engine what it uses. Without --memory it trains without an
engine. It prints one JSON object: a checksum of weights and losses, and what moved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import smartswap
import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent


def build(device: str, folder: str | None = None) -> Any:
    """Compiles the operator against PyTorch and the engine's header and library."""
    source = HERE / ("gated_op.cu" if device == "cuda" else "gated_op.cpp")
    library = smartswap.library_path()
    return cpp_extension.load(
        f"gated_op_{device}",
        [str(source)],
        extra_include_paths=[smartswap.include_path()],
        extra_cflags=["-O2"],
        extra_ldflags=[f"-L{library}", "-lsmartswap", f"-Wl,-rpath,{library}"],
        build_directory=folder,
    )


def gated_function(op: Any) -> type[torch.autograd.Function]:
    """The operator with its gradient."""

    class Gated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, gate)
            return op.forward(x, gate)

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, gate = ctx.saved_tensors
            return op.backward(dy.contiguous(), x, gate)

    return Gated


class Block(torch.nn.Module):
    """A layer whose width doubles and is gated back."""

    def __init__(self, width: int, gated: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.value = torch.nn.Linear(width, width)
        self.gate = torch.nn.Linear(width, width)
        self.gated = gated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds the gated value to the input."""
        return x + self.gated.apply(self.value(x), self.gate(x))


def train(op: Any, device: str, steps: int) -> dict[str, Any]:
    """Trains, and returns what came out."""
    torch.manual_seed(1)
    gated = gated_function(op)
    width, rows, layers = 256, 2048, 8
    model = torch.nn.Sequential(*(Block(width, gated) for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checksum = hashlib.sha256()
    for step in range(steps):
        torch.manual_seed(100 + step)
        inputs = torch.randn(rows, width).to(device)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        checksum.update(loss.detach().cpu().numpy().tobytes())
    for weight in model.parameters():
        checksum.update(weight.detach().cpu().numpy().tobytes())
    result = {"steps": steps, "loss": loss.item(), "checksum": checksum.hexdigest()}
    if smartswap.is_enabled():
        stats = smartswap.stats()
        result["limit_bytes"] = stats["limit_bytes"]
        result["reserved_bytes_peak"] = stats["reserved_bytes"]["peak"]
        result["requested_bytes_peak"] = stats["requested_bytes"]["peak"]
        result["swapped_in_bytes"] = stats["swapped_in_bytes"]
        result["stage"] = stats["stage"]
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--memory", help="cap on device memory; without it there is no engine")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--without-hooks", action="store_true", help="to see what then happens")
    parser.add_argument("--build", help="folder for the compiled operator")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    op = build(args.device, args.build)
    op.use_hooks(not args.without_hooks)
    if args.memory is not None:
        device = "host" if args.device == "cpu" else "cuda:0"
        smartswap.enable(memory=args.memory, device=device, min_block="256KiB")
    print(json.dumps(train(op, args.device, args.steps)))


if __name__ == "__main__":
    main()
