"""Uses tensors on streams beside the current one, held up there, while all memory is asked for.

It asserts that no byte is lost, and prints as JSON what was held, and what the device counted.

usage: script_streams.py OPERATOR.so CAP REUSING

REUSING: so many tensors are made after one was freed that one of them gets its memory.
"""

import ctypes
import json
import sys

import smartswap
import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
from gated import op
from standin import DEVICE, ledger

# One tensor is 16 MiB, and under a cap of 104 MiB six fit.
COUNT = 4 << 20
PRESSING = 8

library = ctypes.CDLL("libascendcl.so")
generator = torch.Generator().manual_seed(0)
smartswap.enable(sys.argv[2], device=DEVICE, min_block="1MiB")
dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)


def made() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor on the device, and the same on the host."""
    original = torch.randn(COUNT, generator=generator)
    return original.to(DEVICE), original


def press(count: int) -> list[torch.Tensor]:
    """Takes memory, and writes it as soon as its stream may."""
    others = [torch.full((COUNT,), float(index), device=DEVICE) for index in range(count)]
    for other in others:
        other.add_(1)
    return others


def check(others: list[torch.Tensor]) -> None:
    """What pressed is as it was written."""
    assert [int(other[0]) for other in others] == list(range(1, len(others) + 1))


def collectives() -> list[dict]:
    """Collectives read and write their tensors long after the calls."""
    (part, sent), (reduced, summed), (told, shown) = made(), made(), made()
    whole = torch.empty_like(part)
    library.standin_hold_collectives(1)
    works = [
        dist.all_gather_into_tensor(whole, part, async_op=True),
        dist.all_reduce(reduced, async_op=True),
        dist.broadcast(told, src=0, async_op=True),
    ]
    others = press(PRESSING)
    held = smartswap.stats()["held"]
    assert not any(work.is_completed() for work in works)
    library.standin_hold_collectives(0)
    for work in works:
        work.wait()
    assert all(map(torch.equal, (whole.cpu(), reduced.cpu(), told.cpu()), (sent, summed, shown)))
    check(others)
    return held


def recorded_stream() -> None:
    """A tensor is freed while another stream, of which record_stream told, has yet to read it.

    Nothing else tells of it: the operator has no hooks here.
    """
    gate, _ = made()
    tensor, _ = made()
    due = op.forward(tensor, tensor).cpu()
    op.use_hooks(False)
    side = torch.npu.Stream()
    library.standin_hold_collectives(1)
    work = dist.all_reduce(gate, async_op=True)
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        work.wait()
        gated = op.forward(tensor, tensor)
    tensor.record_stream(side)
    del tensor
    others = press(int(sys.argv[3]))
    assert not work.is_completed()
    library.standin_hold_collectives(0)
    side.synchronize()
    assert torch.equal(gated.cpu(), due)
    check(others)


held = collectives()
recorded_stream()
dist.destroy_process_group()
print(json.dumps({"held": held, "ledger": ledger()}))
