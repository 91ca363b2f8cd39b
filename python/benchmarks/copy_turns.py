"""How long a number that a script reads waits behind copies to the host, in plain PyTorch.

    python benchmarks/copy_turns.py

Two copies of 2 GiB go out on one stream, whole or in pieces, or in pieces that two streams take in
turns. Some milliseconds later the script reads four bytes (`x.item()`), which no copy has to do
with. SmartSwap's driver takes turns for what this shows (crates/npu-sys/src/cuda/copy.rs).
"""

from __future__ import annotations

import argparse
import time

import torch

MIB = 1 << 20
COPY_BYTES = 2048 * MIB
READS = 4
ROUNDS = 3


def submit(pairs, piece_bytes, streams) -> torch.cuda.Stream:
    """Submits copies in pieces, each on the next stream and behind all before; the last stream."""
    at = 0
    for device, pinned in pairs:
        for start in range(0, COPY_BYTES, piece_bytes):
            part = slice(start, start + piece_bytes)
            here, then = (streams[(at + turn) % len(streams)] for turn in (0, 1))
            with torch.cuda.stream(here):
                pinned[part].copy_(device[part], non_blocking=True)
            then.wait_stream(here)
            at += 1
    return then


def measure(pairs, piece_bytes, streams) -> dict:
    """The rate of the copies alone, and the longest of the first reads and of those that follow."""
    number = torch.ones(1, device="cuda")
    first_ms, later_ms = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        submit(pairs, piece_bytes, streams)
        waits_ms = []
        for _ in range(READS):
            time.sleep(0.004)
            began = time.perf_counter()
            number.item()
            waits_ms.append(1e3 * (time.perf_counter() - began))
        first_ms.append(waits_ms[0])
        later_ms.extend(waits_ms[1:])
    torch.cuda.synchronize()
    began = time.perf_counter()
    submit(pairs, piece_bytes, streams).synchronize()
    gigabytes_per_s = len(pairs) * COPY_BYTES / (time.perf_counter() - began) / 1e9
    return {
        "first_ms": round(max(first_ms), 2),
        "later_ms": round(max(later_ms), 2),
        "gigabytes_per_s": round(gigabytes_per_s, 2),
    }


def main() -> None:
    """Prints a line for each way."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    pairs = [
        (
            torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda"),
            torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True),
        )
        for _ in range(2)
    ]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for name, some in (("one stream", streams[:1]), ("two in turns", streams)):
        for piece_mib in (2048, 256, 128, 64, 32, 16, 8):
            print(f"{name}, {piece_mib} MiB: {measure(pairs, piece_mib * MIB, some)}", flush=True)


if __name__ == "__main__":
    main()
