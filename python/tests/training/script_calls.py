"""A script as users write them: it trains, and calls what memory-aware scripts call."""

import argparse
import hashlib
import sys

import torch
import torch.nn.functional as F
from torch import nn


def told(call, *args):
    """What a call returns or raises, in words that do not depend on the allocator."""
    try:
        result = call(*args)
    except Exception as error:
        return f"{call.__name__}: {type(error).__name__}"
    return f"{call.__name__}: {type(result).__name__}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--memory", default="the script's own flag")
    args = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(1024, 256)
        loss = F.mse_loss(model(x), x.roll(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex())
        if step % 3 == 0:
            for call in (
                torch.cuda.empty_cache,
                torch.cuda.memory_stats,
                torch.cuda.max_memory_allocated,
                torch.cuda.memory_allocated,
                torch.cuda.reset_peak_memory_stats,
                torch.cuda.memory_reserved,
                torch.accelerator.is_available,
                torch.accelerator.empty_cache,
                torch.accelerator.memory_stats,
                torch.accelerator.max_memory_allocated,
                torch.accelerator.synchronize,
            ):
                print(told(call))
            print(told(x.record_stream, torch.Stream(device="cpu")))
            print(told(x.pin_memory))
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().numpy().tobytes())
    print(bits.hexdigest(), args.memory, sys.argv[1:], __name__)
    if args.steps == 13:
        raise ValueError("the script's own error")


if __name__ == "__main__":
    main()
