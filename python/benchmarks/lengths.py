"""Trains on batches of changing lengths: plain PyTorch, and SmartSwap under a cap, step by step.

    python benchmarks/lengths.py --model llama4k --lengths uniform --memory 11GiB
    python benchmarks/lengths.py --model llama4k --lengths lognormal --outliers 4 --memory p95

Each way trains in a process of its own, on the same batches. `p95` is a cap at what plain PyTorch
needs for the step that is longer than 95 % of them. The child, `--train`, knows nothing of
SmartSwap. With `--limited` plain PyTorch is run under the cap as well, to see where it runs out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

GIB = 1 << 30
MULTIPLE = 256
OUTLIER_EVERY = 25
# Of lognormal lengths: the median as a part of the longest, and the spread.
TYPICAL, SPREAD = 0.36, 0.5


def lengths(args: argparse.Namespace, longest: int):
    """Yields the batch size and the length of each batch."""
    import torch

    numbers = torch.Generator().manual_seed(7)
    for batch_index in range(args.steps * args.accumulate):
        if args.lengths == "uniform":
            part = 0.4 + 0.6 * torch.rand((), generator=numbers).item()
        else:
            part = TYPICAL * math.exp(SPREAD * torch.randn((), generator=numbers).item())
        batch = 1 + int(torch.randint(args.batches, (), generator=numbers))
        length = int(longest * min(1.0, max(0.125, part))) // batch
        if args.outliers > 1 and batch_index % OUTLIER_EVERY == OUTLIER_EVERY - 1:
            length, batch = args.outliers * longest, 1
        yield batch, max(MULTIPLE, length // MULTIPLE * MULTIPLE)


def mixture(device: str):
    """A Mixtral-like model of transformers, of 1.4 billion parameters, from a config."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=4,
        num_attention_heads=16, num_key_value_heads=8, num_local_experts=8,
        num_experts_per_tok=2, use_cache=False,
    )
    torch.manual_seed(0)
    model = MixtralForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    return config.vocab_size, 8192, lambda ids, targets: model(ids, labels=targets).loss, model


def train(args: argparse.Namespace) -> None:
    """Prints a line of JSON for each step, and one with the weights."""
    import torch
    from decoders import SHAPES, build

    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if args.limited:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(args.limited / total)
    if args.model == "mixtral":
        vocab, longest, loss_of, model = mixture(device)
    else:
        shape = replace(SHAPES[args.model], batch=1)
        model = build(shape, device, recompute=False)
        vocab, longest, loss_of = shape.vocab, shape.sequence, model
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    tokens = torch.Generator().manual_seed(1)
    coming = lengths(args, longest)
    for step in range(args.steps):
        sizes = list(islice(coming, args.accumulate))
        batches = [torch.randint(vocab, (2, *size), generator=tokens).to(device) for size in sizes]
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        wait()
        begin = time.perf_counter()
        for ids, targets in batches:
            loss = loss_of(ids, targets) / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        took_ms = (time.perf_counter() - begin) * 1e3
        batch, length = max(sizes, key=lambda size: size[1])
        told = {"step": step, "batch": batch, "length": length, "ms": took_ms, "loss": loss.item()}
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            told |= {"peak": torch.cuda.max_memory_allocated(), "held": total - free}
        print(json.dumps(told), flush=True)
        del loss, ids, targets, batches
    weights = [float(parameter.detach().double().sum()) for parameter in model.parameters()]
    print(json.dumps({"weights": hash(tuple(weights))}), flush=True)


def run(args: argparse.Namespace, launch: list[str], more: list[str], **environment: str):
    """The steps that a way to train told of, its weights, and the end of what it said."""
    command = [sys.executable, *launch, __file__, "--train", "--model", args.model]
    command += ["--lengths", args.lengths, "--steps", str(args.steps)]
    command += ["--outliers", str(args.outliers), "--batches", str(args.batches)]
    command += ["--accumulate", str(args.accumulate), *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=args.timeout,
        env={**os.environ, **environment},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
        name = "-".join(["smartswap" if launch else "plain", *more]).replace("/", "_")
        (args.keep / f"{name}.out").write_text(done.stdout)
        (args.keep / f"{name}.err").write_text(done.stderr)
    weights = lines.pop()["weights"] if lines and "weights" in lines[-1] else None
    return lines, weights, done.stderr.strip().splitlines()[-1:]


def percentile(values: list[float], part: float) -> float:
    """The value below which this part of all lies."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def compare(args: argparse.Namespace) -> dict:
    """Runs both ways and returns what the table says of them."""
    plain, plain_weights, said = run(args, [], [])
    assert plain_weights is not None, said
    cap = args.memory
    if cap == "p95":
        cap = f"{percentile([step['peak'] for step in plain], 0.95) / GIB:.2f}GiB"
    launch = ["-m", "smartswap", "--memory", cap, "--log-level", args.log_level]
    ours, weights, said = run(args, launch, [])
    settled = [
        (step["ms"] / base["ms"], base["length"])
        for base, step in zip(plain, ours)
        if step["step"] >= args.first
    ]
    longest = max((length for _, length in settled), default=0)
    is_outlier = lambda length: args.outliers > 1 and length == longest
    ordinary = [ratio for ratio, length in settled if not is_outlier(length)]
    outliers = [ratio for ratio, length in settled if is_outlier(length)]
    result = {
        "model": args.model, "lengths": args.lengths, "cap": cap, "steps": len(ours),
        "median_ms": [round(median(s["ms"] for s in w[args.first:]), 1) for w in (plain, ours)],
        "of_plain": round(median(ordinary), 3) if ordinary else None,
        "of_plain_in_all": round(
            sum(s["ms"] for s in ours[args.first:]) / sum(s["ms"] for s in plain[args.first:]), 3
        ),
        "outliers_of_plain": [round(ratio, 3) for ratio in outliers],
        "plain_peak_gib": round(max(step.get("peak", 0) for step in plain) / GIB, 2),
        "plain_held_gib": round(max(step.get("held", 0) for step in plain) / GIB, 2),
        "held_gib": round(max((step.get("held", 0) for step in ours), default=0) / GIB, 2),
        "same_losses": [s["loss"] for s in plain] == [s["loss"] for s in ours],
        "same_weights": weights == plain_weights,
        "said": said,
    }
    if args.limit_plain:
        limit = str(int(float(cap.removesuffix("GiB")) * GIB))
        for name, options in {"plain": "", "expandable": "expandable_segments:True"}.items():
            steps, _, said = run(args, [], ["--limited", limit], PYTORCH_ALLOC_CONF=options)
            result[f"{name}_under_the_cap"] = {"steps": len(steps), "said": said}
    return result


def main() -> None:
    """Prints one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="llama4k", help="of decoders.py, or mixtral")
    parser.add_argument("--lengths", choices=["uniform", "lognormal"], default="uniform")
    parser.add_argument("--memory", default="11GiB", help="the cap: a size, or p95")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--first", type=int, default=12, help="the first step that counts")
    parser.add_argument("--outliers", type=int, default=1, help="times the longest")
    parser.add_argument(
        "--batches", type=int, default=1, help="the largest batch; of many, each is shorter"
    )
    parser.add_argument("--accumulate", type=int, default=1, help="batches that make one step")
    parser.add_argument("--limit-plain", action="store_true", help="run plain under the cap, too")
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--keep", type=Path, help="a folder for what the runs print")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--limited", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args)
    else:
        print(json.dumps(compare(args)))


if __name__ == "__main__":
    main()
