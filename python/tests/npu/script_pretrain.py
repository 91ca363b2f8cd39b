"""Trains the GPT as Megatron-LM's pretrain_gpt.py does, with MindSpeed's flags for memory.

Arguments and a YAML file, providers, micro-batches, gradients that DDP reduces through HCCL over
the data-parallel ranks. It prints, as JSON, each iteration's loss, the weights, and what SmartSwap
did.

usage: script_pretrain.py [--yaml-cfg FILE] [flags]
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import smartswap
import torch
import torch.distributed as dist
import torch_npu  # noqa: F401
import yaml
from standin import BATCH, DEVICE, TOKENS, VOCABULARY, Training, ledger, moments_on_host
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Batch = tuple[Tensor, Tensor]


def parse_args(
    extra_args_provider: Callable[[argparse.ArgumentParser], argparse.ArgumentParser],
) -> SimpleNamespace:
    """Megatron's way: flags, and a YAML file whose keys are the flags' names."""
    parser = argparse.ArgumentParser(description="Megatron-style arguments", allow_abbrev=False)
    parser.add_argument("--micro-batch-size", type=int, default=BATCH)
    parser.add_argument("--global-batch-size", type=int, default=2 * BATCH)
    parser.add_argument("--train-iters", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--yaml-cfg")
    values = vars(extra_args_provider(parser).parse_args())
    if values["yaml_cfg"] is not None:
        with open(values["yaml_cfg"]) as file:
            values |= yaml.safe_load(file)
    return SimpleNamespace(**values)


def initialize_megatron() -> None:
    """One process group, as each of Megatron's ranks has, though it be the only one."""
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)


def model_provider() -> nn.Module:
    """The model, built on the host as Megatron's `--use-cpu-initialization` does."""
    return Training("cpu").model


def batches(generator: torch.Generator) -> Iterator[Batch]:
    """Micro-batches on the device."""
    while True:
        text = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
        source, targets = (part.contiguous() for part in (text[:, :-1], text[:, 1:]))
        yield source.to(DEVICE), targets.to(DEVICE)


def forward_step(data_iterator: Iterator[Batch], model: nn.Module) -> Tensor:
    """The loss of a micro-batch."""
    return model(*next(data_iterator))


def train_step(
    args: SimpleNamespace,
    data_iterator: Iterator[Batch],
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
) -> float:
    """One iteration: micro-batches, of which the last reduces the gradients, and the optimizer."""
    optimizer.zero_grad()
    n_microbatches = args.global_batch_size // args.micro_batch_size
    total = 0.0
    for index in range(n_microbatches):
        is_last = index == n_microbatches - 1
        with nullcontext() if is_last else model.no_sync():
            loss = forward_step(data_iterator, model) * (1 / n_microbatches)
            loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def pretrain() -> dict:
    """The whole training, and what is told of it."""
    args = parse_args(extra_args_provider=smartswap.add_arguments)
    is_capped = smartswap.enable_for(args, device=DEVICE)
    initialize_megatron()
    model = DistributedDataParallel(model_provider().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    if args.virtual_optimizer is not None:
        n_stages = args.pipeline_model_parallel_size
        smartswap.virtual_optimizer(optimizer, args.virtual_optimizer, stage=0, n_stages=n_stages)
    data_iterator = batches(torch.Generator().manual_seed(1))
    losses, stages = [], []
    for _ in range(args.train_iters):
        losses.append(train_step(args, data_iterator, model, optimizer).hex())
        stages.append(smartswap.stats()["stage"] if is_capped else None)
    told = {"losses": losses, "stages": stages, "peak_bytes": torch.npu.max_memory_allocated()}
    told["smartswap"] = smartswap.stats() if is_capped else None
    told["moments_on_host"] = moments_on_host(optimizer)
    digest = hashlib.sha256()
    for weight in model.state_dict().values():
        digest.update(weight.cpu().numpy().tobytes())
    # What it holds of the process group goes first.
    del model
    dist.destroy_process_group()
    return told | {"weights": digest.hexdigest(), "ledger": ledger()}


if __name__ == "__main__":
    print(json.dumps(pretrain()))
