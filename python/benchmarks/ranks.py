"""Training on several GPUs through NCCL (gloo without GPUs): DDP and FSDP2, the same bits.

    python benchmarks/ranks.py --ranks 2 --memory 10GiB
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))


def train(args: argparse.Namespace) -> None:
    """One rank. The first prints what came of it."""
    import torch
    import torch.distributed as dist
    from h200 import digest
    from decoders import SHAPES, build

    rank = int(os.environ["LOCAL_RANK"])
    has_gpu = torch.cuda.is_available()
    device = f"cuda:{rank}" if has_gpu else "cpu"
    if has_gpu:
        torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    smartswap = None
    if args.method.startswith("smartswap"):
        import smartswap

        smartswap.enable(memory=args.memory)
    dist.init_process_group("nccl" if has_gpu else "gloo")
    shape = SHAPES[args.model]
    model = build(shape, device, recompute=False)
    model, optimizer = wrap(torch, model, args, rank, has_gpu)
    losses, times_ms = [], []
    for step in range(args.steps):
        torch.manual_seed(1000 * step + rank)
        ids = torch.randint(shape.vocab, (shape.batch, shape.sequence), device=device)
        targets = torch.randint(shape.vocab, (shape.batch, shape.sequence), device=device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()).hex())
        if has_gpu:
            torch.cuda.synchronize()
        times_ms.append((time.perf_counter() - begin) * 1e3)
    local = [getattr(p, "_local_tensor", p) for p in model.parameters()]
    result = {
        "rank": rank,
        "step_ms": median(times_ms[-5:]),
        "losses": losses,
        "weights": digest(local),
    }
    if smartswap is not None:
        stats = smartswap.stats()
        keys = ("stage", "swapped_out_bytes", "swapped_in_bytes", "misses", "rescues")
        result["stats"] = {key: stats[key] for key in keys}
        result["reserved_gib"] = stats["reserved_bytes"]["peak"] / 2**30
    elif has_gpu:
        result["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    Path(f"{args.out}.{rank}").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def wrap(torch, model, args: argparse.Namespace, rank: int, has_gpu: bool):
    """The model under DDP or FSDP2, and its optimizer."""
    if args.parallel == "ddp":
        ids = [rank] if has_gpu else None
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
    else:
        shard(model)
    return model, torch.optim.AdamW(model.parameters(), fused=True)


def shard(model) -> None:
    """Spreads the weights of a decoder over all ranks, layer by layer (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)


def torchrun(ranks: int) -> list[str]:
    """What starts a script, whose words follow, as so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, "--nproc-per-node", str(ranks)]


def launch(method: str, parallel: str, args: argparse.Namespace) -> list[dict]:
    """Runs all ranks of one cell."""
    out = f"{args.out}.{method}.{parallel}"
    command = [*torchrun(args.ranks), __file__, "--out", out, "--method", method]
    command += ["--parallel", parallel, "--model", args.model, "--steps", str(args.steps)]
    command += ["--memory", args.memory]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    if done.returncode != 0:
        sys.exit(f"{method} {parallel} failed:\n{done.stderr[-3000:]}")
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(args.ranks)]


def main() -> None:
    """Compares SmartSwap with plain PyTorch, rank by rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="mid-adamw")
    parser.add_argument("--memory", default="10GiB", help="the cap of each rank")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--method")
    parser.add_argument("--parallel")
    parser.add_argument("--out", default="/tmp/smartswap-ranks")
    args = parser.parse_args()
    if args.method:
        train(args)
        return
    for parallel in ("ddp", "fsdp2"):
        native = launch("native", parallel, args)
        swapped = launch("smartswap", parallel, args)
        for plain, ours in zip(native, swapped, strict=True):
            same = all(plain[key] == ours[key] for key in ("losses", "weights"))
            print(
                f"{parallel} rank {ours['rank']}: {'same bits' if same else 'OTHER BITS'}, "
                f"step {ours['step_ms']:.1f} ms ({ours['step_ms'] / plain['step_ms']:.2f}x), "
                f"reserved {ours['reserved_gib']:.2f} GiB "
                f"(plain {plain.get('reserved_gib', 0):.2f}), {ours['stats']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
