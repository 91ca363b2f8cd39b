"""AdamW with its moments in host memory: the same bits, at what speed, in how much device memory.

    python benchmarks/virtual_optimizer.py --gigabytes 4
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from statistics import median

GIB = 1 << 30
PARAMETER_ELEMENTS = 64 << 20


def digest(tensors) -> str:
    """A hash over the bits of tensors."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:16]


def run(args: argparse.Namespace) -> dict:
    """Steps an optimizer in this process."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    smartswap = None
    if args.method == "virtual":
        import smartswap

        smartswap.enable(memory=args.memory, host_memory="80GiB" if device == "cuda" else None)
    count = max(1, int(args.gigabytes * 1e9) // (4 * PARAMETER_ELEMENTS))
    torch.manual_seed(0)
    parameters = [
        torch.nn.Parameter(torch.randn(PARAMETER_ELEMENTS, device=device)) for _ in range(count)
    ]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
    if smartswap is not None:
        smartswap.virtual_optimizer(optimizer, "all")
    times_ms = []
    before_bytes = device_bytes(torch, smartswap)
    for step in range(args.steps):
        torch.manual_seed(step + 1)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.normal_()
        if device == "cuda":
            torch.cuda.synchronize()
        if step == 0:
            before_bytes = device_bytes(torch, smartswap)
        begin = time.perf_counter()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    step_ms = median(times_ms[len(times_ms) // 2 :])
    moment_bytes = 2 * 4 * PARAMETER_ELEMENTS * count
    result = {
        "method": args.method,
        "parameters": count * PARAMETER_ELEMENTS,
        "step_ms": step_ms,
        "moments_gb_per_s_each_way": moment_bytes / step_ms / 1e6,
        "device_mib_for_moments": (device_bytes(torch, smartswap) - before_bytes) / (1 << 20),
        "moments_gib": moment_bytes / GIB,
        "weights": digest(parameters),
    }
    if args.checkpoint:
        torch.save(optimizer.state_dict(), args.checkpoint)
        optimizer.load_state_dict(torch.load(args.checkpoint, map_location="cpu"))
        result["device_mib_after_resume"] = (device_bytes(torch, smartswap) - before_bytes) / 2**20
    return result


def device_bytes(torch, smartswap) -> int:
    """Device memory that live tensors hold."""
    if smartswap is not None:
        return smartswap.stats()["allocated_bytes"]["current"]
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def main() -> None:
    """Runs both, each in a process of its own, and prints what they did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=["native", "virtual"])
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of fp32 parameters")
    parser.add_argument("--memory", help="the cap")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoint", help="save and resume through this file")
    args = parser.parse_args()
    if args.method:
        print(json.dumps(run(args)))
        return
    results = []
    for method in ("native", "virtual"):
        command = [sys.executable, __file__, "--method", method, *sys.argv[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(results[-1]), flush=True)
    native, virtual = results
    same = "the same bits" if native["weights"] == virtual["weights"] else "OTHER BITS"
    print(
        f"virtual: {same}; {virtual['step_ms'] / native['step_ms']:.1f}x the step on the device; "
        f"{virtual['moments_gb_per_s_each_way']:.1f} GB/s of moments each way; "
        f"{virtual['device_mib_for_moments']:.1f} MiB of device memory for "
        f"{virtual['moments_gib']:.1f} GiB of moments"
    )


if __name__ == "__main__":
    main()
