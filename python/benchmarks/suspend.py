"""How fast `suspend` and `resume` are, with another process on the device in between.

    python benchmarks/suspend.py --gibibytes 32 --memory 40GiB

The other process is plain PyTorch and takes the same number of bytes. Rates stand beside those of
a plain copy to pinned host memory in the same process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import smartswap
import torch

GIB = 1 << 30
TENSOR_BYTES = 256 << 20
ROUNDS = 3

GUEST = """
import sys, torch
taken = torch.full((int(sys.argv[1]) // 4,), 7, dtype=torch.int32, device=sys.argv[2])
print(int((taken == 7).sum()) * 4)
"""


def main() -> None:
    """Prints one line of JSON for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gibibytes", type=float, default=32)
    parser.add_argument("--memory", default="40GiB")
    parser.add_argument("--device", default=None, help="such as cuda:0; that of this process")
    args = parser.parse_args()

    smartswap.enable(args.memory, device=args.device)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    count = max(1, int(args.gibibytes * GIB) // TENSOR_BYTES)
    tensors = [
        torch.full((TENSOR_BYTES // 4,), seed, dtype=torch.int32, device=device)
        for seed in range(count)
    ]
    gibibytes = count * TENSOR_BYTES / GIB
    pinned = torch.empty(TENSOR_BYTES // 4, dtype=torch.int32, pin_memory=device == "cuda")
    pinned.copy_(tensors[0])
    plain_s = seconds(lambda: pinned.copy_(tensors[0]), synchronize)
    for number in range(ROUNDS):
        synchronize()
        free_before = free_bytes(device)
        suspend_s = seconds(smartswap.suspend, synchronize)
        given_back = free_bytes(device) - free_before
        guest = subprocess.run(
            [sys.executable, "-c", GUEST, str(count * TENSOR_BYTES), device],
            capture_output=True, text=True, check=True,
        )
        assert int(guest.stdout) == count * TENSOR_BYTES, guest.stdout
        resume_s = seconds(lambda: resume_all(tensors), synchronize)
        for seed, tensor in enumerate(tensors):
            assert int((tensor != seed).sum()) == 0, "other bits came back"
            tensor.fill_(seed)
        figures = {
            "round": number,
            "gibibytes": gibibytes,
            "suspend_s": suspend_s,
            "suspend_gibibytes_per_s": gibibytes / suspend_s,
            "resume_s": resume_s,
            "resume_gibibytes_per_s": gibibytes / resume_s,
            "plain_copy_gibibytes_per_s": TENSOR_BYTES / GIB / plain_s,
            "given_back_gibibytes": given_back / GIB,
        }
        print(json.dumps(figures), flush=True)


def seconds(call, synchronize) -> float:
    """How long a call takes, with the device idle at both ends."""
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def resume_all(tensors) -> None:
    """Brings all back and uses one word of each, so that none is still on its way."""
    smartswap.resume()
    for tensor in tensors:
        tensor[:1].add_(0)


def free_bytes(device: str) -> int:
    """What the driver has left."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0


if __name__ == "__main__":
    main()
