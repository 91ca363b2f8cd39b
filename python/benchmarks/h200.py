"""Step times and memory of SmartSwap beside plain PyTorch, each cell in a process of its own.

    python benchmarks/h200.py                    # the whole table
    python benchmarks/h200.py --cells llama4k:native llama4k:smartswap:13GiB

A cell is MODEL:METHOD[:CAP]. Methods: native, recompute (torch.utils.checkpoint), capped (plain
PyTorch with its memory fraction set to the cap), smartswap, and smartswap-STRATEGY-PREFER such as
smartswap-swap-memory. Times are the median of the last steps, measured from step to step with the
device idle at both ends; ratios are against native cells of the same run. With --deterministic
each step's gradients are part of what must be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

CELLS = [
    "small:native",
    "small:smartswap",
    "llama4k:native",
    "llama4k:recompute",
    "llama4k:smartswap",
    "llama4k:smartswap:13GiB",
    "llama4k:smartswap:11GiB",
    "llama4k:capped:13GiB",
    "gpt12k:native",
    "gpt12k:recompute",
    "gpt12k:smartswap",
    "gpt12k:smartswap:30GiB",
]
GIB = 1 << 30
CELL_TIMEOUT_S = 240


def size_bytes(text: str) -> int:
    """13GiB or 900MiB to bytes."""
    number, unit = text[:-3], text[-3:]
    return int(float(number) * {"GiB": GIB, "MiB": GIB >> 10}[unit])


def digest(tensors) -> str:
    """A hash over the bits of tensors."""
    import torch

    state = hashlib.sha256()
    for tensor in tensors:
        # Sums of bits, on the device: the same bits give the same sums.
        bits = tensor.detach().contiguous().view(torch.uint8).view(-1)
        words = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).view(torch.int64)
        weights = torch.arange(1, 1025, device=words.device).repeat(-(-words.numel() // 1024))
        state.update(str((words * weights[: words.numel()]).sum().item()).encode())
    return state.hexdigest()[:16]


def opened(args: argparse.Namespace, method: str, cap_bytes: int | None, manual_steps: bool):
    """The package, with its engine open as the cell's method says."""
    import smartswap

    strategy, prefer = (method.split("-")[1:] + [None, None])[:2]
    smartswap.enable(
        memory=cap_bytes,
        host_memory=args.host_memory,
        defer_updates=args.defer_updates,
        strategy=strategy,
        prefer=prefer,
        manual_steps=manual_steps,
        min_block=args.min_block,
        record=args.record,
    )
    return smartswap


def passes(torch, model, batches, shape):
    """Forward and backward passes of one step; the last loss."""
    for parameter in model.parameters():
        parameter.grad = None
    for ids, targets in batches:
        with torch.autocast(batches.device.type, torch.bfloat16, enabled=shape.autocast):
            loss = model(ids, targets) / shape.accumulate
        loss.backward()
    return loss.detach()


def run_cell(args: argparse.Namespace) -> dict:
    """Trains one cell in this process."""
    model_name, method, *cap = args.cell.split(":")
    cap_bytes = size_bytes(cap[0]) if cap else None
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from decoders import SHAPES, build

    shape = SHAPES[model_name]
    if args.accumulate:
        shape = replace(shape, accumulate=args.accumulate)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
    if device == "cuda":
        torch.cuda.init()
        context_bytes = used_bytes(torch)
        if method == "capped":
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(cap_bytes / total)
    smartswap = None
    if method.startswith("smartswap"):
        smartswap = opened(args, method, cap_bytes, manual_steps=not shape.optimizer)
    model = build(shape, device, recompute=method == "recompute")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True) if shape.optimizer else None
    times_ms, losses, host_ms = [], [], []
    peak_bytes = 0
    for step in range(args.steps):
        torch.manual_seed(step)
        size = (shape.accumulate, 2, shape.batch, shape.sequence)
        batches = torch.randint(shape.vocab, size, device=device)
        synchronize(torch, device)
        begin = time.perf_counter()
        loss = passes(torch, model, batches, shape)
        if optimizer is not None:
            optimizer.step()
        elif smartswap is not None:
            smartswap.step()
        host_ms.append((time.perf_counter() - begin) * 1e3)
        synchronize(torch, device)
        times_ms.append((time.perf_counter() - begin) * 1e3)
        losses.append(float(loss).hex())
        if args.deterministic:
            losses.append(digest(p.grad for p in model.parameters()))
        if device == "cuda":
            peak_bytes = max(peak_bytes, used_bytes(torch) - context_bytes)
        if args.verbose and smartswap is not None:
            now = smartswap.stats()
            shown = {key: now[key] for key in ("stage", "swapped_out_bytes", "misses", "rescues")}
            print(step, round(times_ms[-1], 1), shown, file=sys.stderr, flush=True)
    last = slice(-args.measured, None)
    result = {
        "cell": args.cell,
        "step_ms": median(times_ms[last]),
        "tflops": tflops(shape, model.parameter_count(), median(times_ms[last])),
        "host_ms": median(host_ms[last]),
        "driver_peak_gib": peak_bytes / GIB,
        "loss": float(loss),
        "losses": hashlib.sha256("".join(losses).encode()).hexdigest()[:16],
    }
    if smartswap is not None:
        result["stats"] = now = smartswap.stats()
        result["reserved_gib"] = now["reserved_bytes"]["peak"] / GIB
        if args.advise:
            print(smartswap.advise(), file=sys.stderr)
        if args.explain:
            Path(args.explain).write_text(json.dumps(smartswap.explain(), indent=1))
    elif device == "cuda":
        result["allocated_gib"] = torch.cuda.max_memory_allocated() / GIB
        result["reserved_gib"] = torch.cuda.max_memory_reserved() / GIB
    result["gradients"] = digest(p.grad for p in model.parameters())
    result["weights"] = digest(model.parameters())
    return result


def tflops(shape, n_parameters: int, step_ms: float) -> float:
    """What forward and backward passes come to, without what is computed twice."""
    tokens = shape.accumulate * shape.batch * shape.sequence
    attention = 6 * shape.layers * shape.sequence * shape.hidden
    return tokens * (6 * n_parameters + attention) / (step_ms / 1e3) / 1e12


def used_bytes(torch) -> int:
    """What the driver says is in use on the device."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def synchronize(torch, device: str) -> None:
    """Waits for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def spawn(cell: str, args: argparse.Namespace) -> dict:
    """Runs one cell in a process of its own."""
    command = [sys.executable, __file__, "--cell", cell, "--steps", str(args.steps)]
    command += ["--measured", str(args.measured)]
    if args.deterministic:
        command.append("--deterministic")
    if args.verbose:
        command.append("--verbose")
    if args.advise:
        command.append("--advise")
    for name in ("min_block", "host_memory", "defer_updates", "accumulate"):
        if getattr(args, name):
            command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=args.timeout, env=environment,
            stderr=None if args.verbose or args.advise else subprocess.PIPE,
        )
    except subprocess.TimeoutExpired:
        return {"cell": cell, "failed": f"not done in {args.timeout} s"}
    if done.returncode != 0:
        lines = (done.stderr or "").strip().splitlines()
        return {"cell": cell, "failed": lines[-1][:60] if lines else f"exit {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def table(results: list[dict], deterministic: bool) -> str:
    """The results as a Markdown table."""
    # Without deterministic algorithms some gradients of plain PyTorch differ from run to run.
    keys = ("losses", "gradients", "weights") if deterministic else ("losses",)
    done = [r for r in results if "failed" not in r]
    native = {r["cell"].split(":")[0]: r for r in done if r["cell"].endswith(":native")}
    lines = [
        "| model | method | cap | step ms | of native | TFLOP/s | reserved GiB | driver's peak GiB "
        f"| out / in GiB a step | same {', '.join(keys)} |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for result in results:
        model, method, *cap = result["cell"].split(":")
        shown = f"| {model} | {method} | {cap[0] if cap else ''} "
        reserved = f"{result['reserved_gib']:.2f}" if "reserved_gib" in result else ""
        if "failed" in result:
            lines.append(shown + f"| {result['failed']} |||||||")
            continue
        base = native.get(model)
        ratio = f"{result['step_ms'] / base['step_ms']:.3f}" if base else ""
        same = "" if base is None or result is base else (
            "yes" if all(result[key] == base[key] for key in keys) else "NO"
        )
        stats = result.get("stats")
        moved = ""
        if stats:
            steps = max(1, stats["steps"])
            moved = f"{stats['swapped_out_bytes'] / steps / GIB:.2f} / "
            moved += f"{stats['swapped_in_bytes'] / steps / GIB:.2f}"
        lines.append(
            shown + f"| {result['step_ms']:.1f} | {ratio} | {result['tflops']:.1f} | {reserved} "
            f"| {result['driver_peak_gib']:.2f} | {moved} | {same} |"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=CELLS, help="MODEL:METHOD[:CAP]")
    parser.add_argument("--cell", help="run this one here and print it as JSON")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--measured", type=int, default=5, help="the last so many steps count")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--min-block", help="blocks of at least this size move")
    parser.add_argument("--host-memory", help="cap on pinned host memory")
    parser.add_argument("--defer-updates", help="whether the optimizer's updates wait")
    parser.add_argument("--accumulate", type=int, help="micro-batches a step, whatever the model")
    parser.add_argument("--advise", action="store_true", help="print what advise() says")
    parser.add_argument("--timeout", type=int, default=CELL_TIMEOUT_S, help="seconds a cell")
    parser.add_argument("--record", help="save the trace of recorded steps here")
    parser.add_argument("--explain", help="save what the engine decided here")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", help="save all results here")
    return parser.parse_args()


def main() -> None:
    """Runs the cells and prints the table."""
    args = parse()
    if args.cell:
        print(json.dumps(run_cell(args)))
        return
    results = []
    for cell in args.cells:
        results.append(spawn(cell, args))
        print(json.dumps(results[-1])[:400], file=sys.stderr, flush=True)
        if args.json:
            Path(args.json).write_text(json.dumps(results, indent=1))
    print(f"{date.today()}, {args.steps} steps a cell")
    print(table(results, args.deterministic))


if __name__ == "__main__":
    main()
