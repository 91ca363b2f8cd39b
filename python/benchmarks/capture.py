"""What it costs the host to keep calls of operators, so that they can run again.

    python benchmarks/capture.py                    # on the CPU
    python benchmarks/capture.py --device cuda --memory 256MiB

Trains a small GPT with dropout under a cap below what it needs, until its search is over and some
steps on. Calls are kept in steps that are recorded, and those that the plan runs again in all. The
engine counts the time that it takes; it is told in microseconds an outermost operator, of all
operators while steps are watched, whether their calls are kept or not.
"""

from __future__ import annotations

import argparse

import smartswap
import torch
from decoders import Decoder, Shape


def main() -> None:
    """Prints the average of the steps before the first Stable one, and of all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--memory", default="40MiB")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    smartswap.enable(
        memory=args.memory, device=None if args.device == "cpu" else args.device, min_block="16KiB"
    )
    torch.manual_seed(1)
    shape = Shape(512, 128, 4, 512, args.layers, 4, 64, dropout=0.1)
    model = Decoder(shape, recompute=False).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters())
    searched = None
    for _ in range(args.steps):
        ids = torch.randint(shape.vocab, (shape.batch, shape.sequence), device=args.device)
        model(ids, ids).backward()
        optimizer.step()
        optimizer.zero_grad()
        now = smartswap.stats()
        if searched is None and now["steps_by_stage"]["Stable"]:
            searched = now
    if searched is None:
        raise SystemExit(f"the search was not over after {args.steps} steps: ask for more --steps")
    op_count = smartswap.explain()["op_count"]
    print(
        f"{op_count} outermost operators a step under {args.memory}, {now['recomputed_ops']} ran "
        "again in all steps; keeping calls took, in microseconds an operator:"
    )
    for name, told in (("until the plan was chosen", searched), ("on average", now)):
        steps, recipes = told["steps"], told["recipes"]
        average_us = recipes["keeping_us"] / (op_count * steps)
        print(f"  {name:>25}: {average_us:.3f} in {steps} steps, {recipes['offered']} calls kept")


if __name__ == "__main__":
    main()
