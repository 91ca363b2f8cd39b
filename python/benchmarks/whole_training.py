"""Whether a cap changes one bit of a whole training: all that scripts do around the model, at once.

    python python/benchmarks/whole_training.py b3-adamw-4:48GiB b7-adamw-8:24GiB
    python python/benchmarks/whole_training.py --parallel ddp --ranks 2 b3-adamw-4:60GiB

Each training has micro-batches, dropout, clipping by the norm of all gradients, a learning rate
that changes every step, and a moving average of the weights, with deterministic algorithms.
Plain PyTorch trains straight through. Under the cap a process trains to the middle, saves a
checkpoint and ends; another goes on from the file. `SMARTSWAP_MEMORY` is all that is different.
What must be the same: each step's loss, norm and learning rate; the weights, their average, both
moments of AdamW and the state of the generators at the end. With `--parallel ddp` or `fsdp2` each
of these is compared on each rank, and all ranks write one checkpoint together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from decoders import SHAPES, Shape, build
from h200 import GIB, digest, synchronize, used_bytes
from ranks import shard, torchrun
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DROPOUT = 0.1
NORM_MAX = 1.0
WARMUP_STEPS = 4
EMA_DECAY = 0.99
# Of which the median is taken: the last so many steps of each process.
MEASURED = 4
WHAT = ("losses", "norms", "rates", "weights", "average", "moments", "generators")
COLUMNS = (
    "model", "cap", "median step", "of plain", "predicted", "held, of plain's",
    "out / in, a step", ", ".join(WHAT),
)


class Training:
    """A model with all that its training needs, and what a checkpoint of it holds."""

    def __init__(self, shape: Shape, device: str, steps: int) -> None:
        self.shape, self.device = shape, device
        self.model = build(shape, device, recompute=False)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY))
        # What turns ids and targets into a loss.
        self.forward = self.spread()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            lambda step: min((step + 1) / WARMUP_STEPS, (1 + math.cos(math.pi * step / steps)) / 2),
        )

    def spread(self) -> torch.nn.Module:
        """Spreads the training over ranks, if there are several."""
        return self.model

    def without_others(self, is_last: bool) -> contextlib.AbstractContextManager:
        """Where gradients stay on this rank, until the last micro-batch."""
        return contextlib.nullcontext()

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor, float]:
        """One step: its loss, the norm of its gradients and its learning rate."""
        shape = self.shape
        data = torch.Generator(self.device).manual_seed(number * rank_count() + rank())
        size = (shape.accumulate, 2, shape.batch, shape.sequence)
        batches = torch.randint(shape.vocab, size, device=self.device, generator=data)
        total = torch.zeros((), device=self.device)
        for index, (ids, targets) in enumerate(batches, 1):
            with self.without_others(is_last=index == len(batches)):
                with torch.autocast(self.device, torch.bfloat16, enabled=shape.autocast):
                    loss = self.forward(ids, targets) / shape.accumulate
                loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), NORM_MAX)
        rate = self.schedule.get_last_lr()[0]
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update_parameters(self.model)
        return total, local(norm), rate

    def parts(self) -> tuple:
        """What has a `state_dict`."""
        return self.model, self.average, self.optimizer, self.schedule

    def save(self, file: Path) -> None:
        """Writes a checkpoint."""
        states = [part.state_dict() for part in self.parts()]
        torch.save([*states, generator_states(self.device)], file)

    def load(self, file: Path) -> None:
        """Goes on from a checkpoint."""
        *states, generators = torch.load(file, map_location="cpu", mmap=True)
        for part, state in zip(self.parts(), states, strict=True):
            part.load_state_dict(state)
        set_generators(self.device, generators)

    def digests(self) -> dict[str, str]:
        """Hashes over the bits of what is left at the end."""
        states = self.optimizer.state.values()
        moments = (state[key] for state in states for key in ("exp_avg", "exp_avg_sq"))
        return {
            "weights": digest(map(local, self.model.parameters())),
            "average": digest(map(local, self.average.parameters())),
            "moments": digest(map(local, moments)),
            "generators": digest(generator_states(self.device)),
        }


class RankTraining(Training):
    """The same on several ranks, each of which has data of its own."""

    def __init__(self, shape: Shape, device: str, steps: int, parallel: str) -> None:
        self.parallel = parallel
        super().__init__(shape, device, steps)

    def spread(self) -> torch.nn.Module:
        if self.parallel == "ddp":
            return torch.nn.parallel.DistributedDataParallel(self.model)
        for model in (self.model, self.average.module):
            shard(model)
        return self.model

    def without_others(self, is_last: bool) -> contextlib.AbstractContextManager:
        waits = self.parallel == "ddp" and not is_last
        return self.forward.no_sync() if waits else contextlib.nullcontext()

    def states(self) -> dict:
        """What all ranks write together."""
        return {
            "model": get_model_state_dict(self.model),
            "average": get_model_state_dict(self.average),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "schedule": self.schedule.state_dict(),
        }

    def save(self, file: Path) -> None:
        checkpoint.save(self.states(), checkpoint_id=file)
        torch.save(generator_states(self.device), file / f"generators.{rank()}")

    def load(self, file: Path) -> None:
        states = self.states()
        checkpoint.load(states, checkpoint_id=file)
        set_model_state_dict(self.model, states["model"])
        set_model_state_dict(self.average, states["average"])
        set_optimizer_state_dict(self.model, self.optimizer, states["optimizer"])
        self.schedule.load_state_dict(states["schedule"])
        set_generators(self.device, torch.load(file / f"generators.{rank()}"))


def rank() -> int:
    """The number of this process among its ranks."""
    return dist.get_rank() if dist.is_initialized() else 0


def rank_count() -> int:
    """How many ranks train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor; of a sum over ranks that is not made yet, all of it."""
    if not isinstance(tensor, DTensor):
        return tensor
    is_partial = any(placement.is_partial() for placement in tensor.placements)
    return tensor.full_tensor() if is_partial else tensor.to_local()


def generators_of(device: str) -> list[torch.Generator]:
    """The default generators that a training draws from."""
    if device == "cpu":
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


def generator_states(device: str) -> list[torch.Tensor]:
    """Where those generators are."""
    return [generator.get_state() for generator in generators_of(device)]


def set_generators(device: str, states: list[torch.Tensor]) -> None:
    """Puts them there again."""
    for generator, state in zip(generators_of(device), states, strict=True):
        generator.set_state(state)


def train(args: argparse.Namespace) -> dict:
    """Trains from `--first` up to `--last` in this process."""
    torch.use_deterministic_algorithms(True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    context_bytes = peak_bytes = 0
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.init()
        context_bytes = used_bytes(torch)
    shape = replace(SHAPES[args.one], dropout=DROPOUT)
    if args.parallel:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        training = RankTraining(shape, device, args.steps, args.parallel)
    else:
        training = Training(shape, device, args.steps)
    torch.manual_seed(1 + rank())
    if args.first:
        training.load(args.file)
    told, times_ms = [], []
    for number in range(args.first, args.last):
        synchronize(torch, device)
        begin = time.perf_counter()
        told.append(training.step(number))
        synchronize(torch, device)
        times_ms.append((time.perf_counter() - begin) * 1e3)
        if device == "cuda":
            peak_bytes = max(peak_bytes, used_bytes(torch) - context_bytes)
    if args.last < args.steps:
        training.save(args.file)
    losses, norms, rates = zip(*told, strict=True)
    result = {
        "losses": [float(loss).hex() for loss in losses],
        "norms": [float(norm).hex() for norm in norms],
        "rates": [rate.hex() for rate in rates],
        "times_ms": times_ms,
        "held_bytes": peak_bytes,
    }
    smartswap = sys.modules.get("smartswap")
    if smartswap is not None and smartswap.is_enabled():
        prediction, stats = smartswap.explain()["prediction"], smartswap.stats()
        result["predicted_ms"] = prediction and prediction["step_us"] / 1e3
        moved = (stats[f"swapped_{way}_bytes"] for way in ("out", "in"))
        result["moved_bytes"] = [each / max(1, stats["steps"]) for each in moved]
    result |= training.digests()
    if args.parallel:
        dist.destroy_process_group()
    return result


def processes(model: str, cap: str | None, args: argparse.Namespace) -> list[dict]:
    """What the processes of one training told: one of plain PyTorch, two under a cap."""
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    bounds = [0, args.steps]
    if cap is not None:
        environment["SMARTSWAP_MEMORY"] = cap
        bounds.insert(1, args.steps // 2)
    told = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for first, last in zip(bounds, bounds[1:], strict=False):
            command = torchrun(args.ranks) if args.parallel else [sys.executable]
            command.append(__file__)
            command += ["--parallel", args.parallel] if args.parallel else []
            command += ["--one", model, "--steps", str(args.steps)]
            command += ["--first", str(first), "--last", str(last)]
            command += ["--file", str(Path(folder, "checkpoint")), "--told", str(Path(folder))]
            done = subprocess.run(command, env=environment)
            if done.returncode:
                raise SystemExit(f"{model} at {cap or 'no cap'}: exit {done.returncode}")
            files = sorted(Path(folder).glob("told.*"), key=lambda file: int(file.suffix[1:]))
            told.append(together([json.loads(file.read_text()) for file in files]))
            print(model, cap, last, [round(ms) for ms in told[-1]["times_ms"]], file=sys.stderr)
    return told


def together(ranks: list[dict]) -> dict:
    """What the ranks of a process group told, as one: all bits, and the slowest's times."""
    one = {key: ranks[0][key] for key in ("predicted_ms", "moved_bytes") if key in ranks[0]}
    for what in WHAT:
        told = [each[what] for each in ranks]
        is_list = isinstance(told[0], list)
        one[what] = list(map(" ".join, zip(*told))) if is_list else " ".join(told)
    one["times_ms"] = list(map(max, zip(*(each["times_ms"] for each in ranks))))
    one["held_bytes"] = max(each["held_bytes"] for each in ranks)
    return one


def row(model: str, cap: str, plain: list[dict], capped: list[dict]) -> str:
    """A row of the table."""
    # Here, as no process of plain PyTorch has the package.
    from smartswap.sizes import format_size

    step_ms = median(ms for part in capped for ms in part["times_ms"][-MEASURED:])
    plain_ms = median(plain[0]["times_ms"][-MEASURED:])
    predicted_ms = capped[-1]["predicted_ms"]
    held = [max(part["held_bytes"] for part in parts) / GIB for parts in (capped, plain)]
    different = [what for what in WHAT if plain[0][what] != whole(what, capped)]
    cells = [
        model,
        cap,
        f"{step_ms:.1f} ms",
        f"{step_ms / plain_ms:.3f}",
        f"{predicted_ms:.1f} ms" if predicted_ms else "",
        f"{held[0]:.2f} of {held[1]:.2f} GiB",
        " / ".join(map(format_size, capped[-1]["moved_bytes"])),
        "DIFFERENT: " + ", ".join(different) if different else "the same",
    ]
    return "| " + " | ".join(cells) + " |"


def whole(what: str, parts: list[dict]) -> list | str:
    """What the processes of a training come to: all steps of theirs, or how the last one ended."""
    ends = [part[what] for part in parts]
    return sum(ends, []) if isinstance(ends[0], list) else ends[-1]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", default=["b3-adamw-4:48GiB"], help="MODEL:CAP")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", help="where checkpoints go for a while")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], help="on several ranks")
    parser.add_argument("--ranks", type=int, default=2, help="how many; the cap is of each")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    for name in ("first", "last"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    for name in ("file", "told"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs the trainings and prints a table, and fails if a bit differs."""
    args = parse()
    if args.one:
        told = train(args)
        (args.told / f"told.{os.environ.get('RANK', 0)}").write_text(json.dumps(told))
        return
    plain, rows = {}, []
    for model, cap in (cell.split(":") for cell in args.cells):
        if model not in plain:
            plain[model] = processes(model, None, args)
        rows.append(row(model, cap, plain[model], processes(model, cap, args)))
        print(rows[-1], file=sys.stderr, flush=True)
    print(f"{date.today()}, {args.steps} steps, a checkpoint after {args.steps // 2}")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    print("\n".join(rows))
    if any("DIFFERENT" in each for each in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
