"""Workloads of several processes, which gloo connects."""

import os
import sys
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Gpt, Mlp, padded_tokens, token_loss, tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from workloads import STEPS, final


@contextmanager
def _group():
    """The group of all ranks, each with random numbers of its own."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["STORE"], ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        yield rank
    finally:
        dist.destroy_process_group()


def replicated(steps=STEPS, batch=tokens):
    """DistributedDataParallel, gradients as views of its buckets."""
    with _group() as rank:
        model = Gpt(layers=2)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
        torch.manual_seed(100 + rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = token_loss(wrapped, *batch())
            loss.backward()
            optimizer.step()
            yield loss
        return final(model, optimizer)


def padded():
    """The same on batches that each rank pads to a length of its own."""
    return (yield from replicated(2 * STEPS, padded_tokens))


def sharded():
    """Fully sharded data parallel, each layer a group of its own."""
    with _group() as rank:
        model = Gpt(layers=2)
        # Shards know nothing of shared weights.
        model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
        mesh = init_device_mesh("cpu", (2,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        torch.manual_seed(100 + rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = token_loss(model, *tokens())
            loss.backward()
            optimizer.step()
            yield loss
        return final(model, optimizer)


def _plan():
    """The plan of the running step, 0 without one or in plain PyTorch."""
    smartswap = sys.modules.get("smartswap")
    return smartswap.stats()["plan"] if smartswap is not None else 0


def _marker():
    """The file that the first rank makes when it is done."""
    return os.environ["STORE"] + "-done"


def _wait_for_the_first_rank():
    deadline = time.monotonic() + 120
    while not os.path.exists(_marker()):
        assert time.monotonic() < deadline, "the first rank hangs"
        time.sleep(0.01)


def _apart(inner=512, steps=STEPS, before_step=lambda step: None, inside_step=lambda: None):
    """Training that waits for no other rank, so that only judging may."""
    model = Mlp(inner=inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        before_step(step)
        optimizer.zero_grad()
        x = torch.randn(512, 256)
        loss = F.mse_loss(model(x), x)
        inside_step()
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def hindered():
    """Ranks of which each is slow under plans that do not slow the other."""
    with _group() as rank:
        plans = []

        def inside_step():
            plan = _plan()
            if plan != 0 and plan not in plans:
                plans.append(plan)
            if plan != 0 and plans.index(plan) % 2 != rank:
                time.sleep(0.2 + 0.2 * rank)

        return (yield from _apart(inside_step=inside_step))


def different():
    """Ranks with models of their own, as the stages of a pipeline have."""
    with _group() as rank:
        return (yield from _apart(inner=(512, 640)[rank]))


def one_fits():
    """A rank whose model fits, and is soon not watched any more, beside one whose does not."""
    with _group() as rank:
        return (yield from _apart(inner=(32, 512)[rank]))


def leaves():
    """The second rank has fewer steps. The first forks in between."""
    with _group() as rank:

        def before_step(step):
            if rank == 0 and step == 5:
                pid = os.fork()
                if pid == 0:
                    os._exit(5)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5

        return (yield from _apart(steps=(STEPS, 7)[rank], before_step=before_step))


def raises():
    """The second rank fails in the middle."""
    with _group() as rank:

        def before_step(step):
            if rank == 1 and step == 7:
                raise ValueError("the second rank fails")

        return (yield from _apart(before_step=before_step))


def stays_behind():
    """The second rank stops in the middle until the first has finished."""
    with _group() as rank:

        def before_step(step):
            if rank == 1 and step == 7:
                _wait_for_the_first_rank()

        result = yield from _apart(before_step=before_step)
        open(_marker(), "w").close()
        return result


def opens_late(memory=None):
    """The second rank has no engine before the first has finished."""
    with _group() as rank:

        def before_step(step):
            if rank == 1 and step == 3:
                _wait_for_the_first_rank()
            if memory is not None and step == (0, 3)[rank]:
                import smartswap

                smartswap.enable(memory=memory, host_memory="1GiB", device="host", rank_wait=1)

        result = yield from _apart(before_step=before_step)
        open(_marker(), "w").close()
        return result
