"""Workloads of several processes, which gloo connects."""

import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from models import Gpt, token_loss, tokens
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


def replicated():
    """DistributedDataParallel, gradients as views of its buckets."""
    with _group() as rank:
        model = Gpt(layers=2)
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1)
        torch.manual_seed(100 + rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = token_loss(wrapped, *tokens())
            loss.backward()
            optimizer.step()
            yield loss
        return final(model, optimizer)


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
