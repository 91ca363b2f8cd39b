"""Trains one cell of the table in this process, and tells on its standard output how it goes.

    python benchmarks/peers/cell.py --model tiny --method checkpoint --steps 4

It prints one line of JSON when the model is ready, one when the last step is done, and one with
the result. Whatever libraries print goes to the standard error.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.methods import JOBS, SMARTSWAP, method

PIECE_WORDS = 1 << 20


def fingerprint(tensors) -> str:
    """A sum over the bits of tensors, in pieces, so that what is held does not grow."""
    import torch

    total = 0
    for position, tensor in enumerate(tensors):
        words = tensor.contiguous().view(-1).view(torch.uint8)
        words = words[: words.numel() // 8 * 8].view(torch.int64)
        places = torch.arange(1, min(PIECE_WORDS, words.numel()) + 1, device=words.device)
        sums = [(piece * places[: piece.numel()]).sum() for piece in words.split(PIECE_WORDS)]
        for place, value in enumerate(sums):
            total += (position + 1) * (place + 1) * int(value)
    return f"{total % (1 << 64):016x}"


def train(args: argparse.Namespace, tell) -> dict:
    """Trains, and returns times, losses and weights."""
    import torch
    from decoders import SHAPES, build

    job = JOBS[args.model]
    shape = SHAPES[job.shape]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.deterministic:
        # With mere warnings attention would still take its way that gives other bits each time.
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    model = build(shape, device, recompute=False, dtype=getattr(torch, job.weights))
    training = method(args.method).apply(job, model, device)
    del model
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    batches = torch.Generator().manual_seed(1)
    size = (job.micro_batches, 2, shape.batch, shape.sequence)
    times_ms, losses, weights = [], [], {}
    tell({"event": "ready"})
    for step in range(1, args.steps + 1):
        tokens = torch.randint(shape.vocab, size, generator=batches).to(device)
        wait()
        begin = time.perf_counter()
        step_losses = [training.micro_batch(ids, targets) for ids, targets in tokens]
        training.update()
        wait()
        times_ms.append((time.perf_counter() - begin) * 1e3)
        losses += [float(loss).hex() for loss in step_losses]
        print(step, f"{times_ms[-1]:.1f} ms", losses[-1], file=sys.stderr, flush=True)
        if step in args.digest_at and training.own_weights() is not None:
            weights[step] = fingerprint(training.own_weights())
    tell({"event": "done"})
    step_ms = median(times_ms[-args.measured :])
    tokens = job.micro_batches * shape.batch * shape.sequence
    return {
        "step_ms": step_ms,
        "tokens_per_s": tokens / step_ms * 1e3,
        "times_ms": times_ms,
        "losses": losses,
        "weights": weights,
        "rss_bytes": resident_peak(),
        **counted(torch, device),
    }


def counted(torch, device: str) -> dict:
    """What PyTorch and SmartSwap counted: pinned host memory, and what moved."""
    pinned = 0
    figures = {"device": "CPU"}
    if device == "cuda":
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)
        figures["device"] = torch.cuda.get_device_name()
    smartswap = sys.modules.get(SMARTSWAP)
    if smartswap is not None and smartswap.is_enabled():
        stats = smartswap.stats()
        pinned += stats["pinned_host_bytes"]["peak"]
        keys = ("stage", "swapped_out_bytes", "swapped_in_bytes", "recomputed_ops", "misses")
        figures["smartswap"] = {key: stats[key] for key in keys}
    return figures | {"pinned_bytes": pinned, "torch": torch.__version__}


def resident_peak() -> int:
    """The most host memory that this process had in use, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def first_line(error: BaseException) -> str:
    """What an error says first, with its kind."""
    lines = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])


def main() -> None:
    """Trains, or says why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=JOBS, required=True)
    parser.add_argument("--method", required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--measured", type=int, default=3, help="the last so many steps count")
    parser.add_argument("--digest-at", type=int, nargs="*", default=[], help="sum up weights")
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(event: dict) -> None:
        print(json.dumps(event), file=lines, flush=True)

    try:
        tell({"event": "result", **train(args, tell)})
    except Exception as error:
        tell({"event": "result", "failed": first_line(error)})
        raise
    finally:
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
