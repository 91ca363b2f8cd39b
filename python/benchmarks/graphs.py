"""What a cap costs a training whose layers are CUDA graphs, beside the same without graphs.

    python python/benchmarks/graphs.py --layers 24 --width 4096 --rows 32768 --share 0.9

Four trainings, each in a process of its own, and a line of JSON for each: plain PyTorch and a cap
of `--share` of what it held, without graphs and with a graph for each layer's forward and backward
pass. `step_ms` is the median of the last steps, `held_gib` the most that the driver has given at
the end of a step. Losses are the same to the bit in each pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import smartswap
import torch
from torch import nn

GIB = 1 << 30
WARM_STEPS, STEPS = 40, 20


def main() -> None:
    """Runs the four, or one of them where it is told which."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--one", choices=("eager", "graphs"), help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(train(args)))
        return
    caps = {"eager": 0, "graphs": 0}
    for is_capped in (False, True):
        losses = {}
        for kind in caps:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", kind]
            command += ["--cap", str(caps[kind])] if is_capped else []
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            told = json.loads(done.stdout.splitlines()[-1])
            losses[kind] = told.pop("loss")
            print(json.dumps(told | {"loss": losses[kind]}), flush=True)
            caps[kind] = caps[kind] or int(told["held_gib"] * GIB * args.share)


def train(args: argparse.Namespace) -> dict[str, Any]:
    """One training: what it took."""
    torch.cuda.init()
    free_bytes = torch.cuda.mem_get_info()[0]
    if args.cap:
        smartswap.enable(args.cap)
    torch.manual_seed(1)
    blocks = [
        nn.Sequential(nn.LayerNorm(args.width), nn.Linear(args.width, args.width), nn.GELU())
        .to("cuda", torch.bfloat16)
        for _ in range(args.layers)
    ]
    if args.one == "graphs":
        sample = torch.zeros(args.rows, args.width, device="cuda", dtype=torch.bfloat16)
        samples = [(sample.clone().requires_grad_(place > 0),) for place in range(len(blocks))]
        # Together, so that they share a pool and the stream on which they are warmed up.
        blocks = torch.cuda.make_graphed_callables(tuple(blocks), tuple(samples))
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    times, held_bytes = [], 0
    for turn in range(WARM_STEPS + STEPS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        generator = torch.Generator("cuda").manual_seed(turn)
        x = torch.randn(args.rows, args.width, device="cuda", generator=generator).bfloat16()
        loss = model(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        held_bytes = max(held_bytes, free_bytes - torch.cuda.mem_get_info()[0])
    return {
        "kind": args.one,
        "cap_gib": round(args.cap / GIB, 2) or None,
        "step_ms": round(statistics.median(times[-STEPS:]) * 1e3, 2),
        "held_gib": round(held_bytes / GIB, 2),
        "device": torch.cuda.get_device_name(),
        "stage": smartswap.stats()["stage"] if args.cap else None,
        "loss": loss.item().hex(),
    }


if __name__ == "__main__":
    main()
