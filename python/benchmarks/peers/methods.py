"""The methods that are compared: what each does to a model and its optimizer, and one table.

Packages are imported where they are used, so that the table can be read without any of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

RATE = 1e-4
DECAY = 1e-2
BETAS = (0.9, 0.999)
EPSILON = 1e-8
# What torch.compile may keep of the activations that it would keep by itself.
ACTIVATION_BUDGET = 0.5


@dataclass(frozen=True)
class Job:
    """What is trained: a shape of `decoders.py`, and how."""

    shape: str
    # Weights of 32 bits are used under autocast to bfloat16.
    weights: str
    # So many batches are summed into the gradients of a step.
    micro_batches: int


JOBS = {
    "llama4k": Job("llama4k", "bfloat16", 1),
    "b3": Job("b3", "float32", 4),
    # For trying the script out without a GPU.
    "tiny": Job("tiny", "float32", 2),
}


class Training:
    """A model, its optimizer and a step of theirs, as plain PyTorch has it.

    `around` gives what holds during the forward pass, and during the backward pass too where
    `spans_backward` is set.
    """

    def __init__(self, job: Job, model: nn.Module, device: str, optimizer=None) -> None:
        self.job = job
        self.model = model
        self.device = device
        self.optimizer = optimizer or adamw(model)
        self.around: Callable[[], AbstractContextManager] = nullcontext
        self.spans_backward = False

    def micro_batch(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Adds to the gradients. Returns the loss, on the device."""
        with self.around():
            loss = self._forward(ids, targets)
            if self.spans_backward:
                self._backward(loss)
        if not self.spans_backward:
            self._backward(loss)
        return loss.detach()

    def update(self) -> None:
        """Ends a step."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def own_weights(self) -> list[torch.Tensor] | None:
        """What the model has learnt; None where this process cannot see all of it."""
        return [getattr(p, "_local_tensor", p).detach() for p in self.model.parameters()]

    def _forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        import torch

        with torch.autocast(self.device, torch.bfloat16, enabled=self.job.weights == "float32"):
            return self.model(ids, targets)

    def _backward(self, loss: torch.Tensor) -> None:
        (loss / self.job.micro_batches).backward()


def adamw(model: nn.Module):
    """PyTorch's fused AdamW."""
    import torch

    return torch.optim.AdamW(
        model.parameters(), RATE, BETAS, EPSILON, weight_decay=DECAY, fused=True
    )


def recompute_blocks(job: Job, model: nn.Module, device: str) -> Training:
    """`torch.utils.checkpoint` around each block."""
    from torch.utils.checkpoint import checkpoint

    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return Training(job, model, device)


def recompute_selected(job: Job, model: nn.Module, device: str) -> Training:
    """The same, but what matrix products and attention gave is kept."""
    import torch
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    aten = torch.ops.aten
    kept = [
        aten.mm.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    ]
    contexts = partial(create_selective_checkpoint_contexts, kept)
    for layer in model.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, context_fn=contexts)
    return Training(job, model, device)


def compile_blocks(job: Job, model: nn.Module, device: str) -> Training:
    """`torch.compile` for each block."""
    for layer in model.layers:
        layer.compile()
    return Training(job, model, device)


def compile_with_budget(job: Job, model: nn.Module, device: str) -> Training:
    """The same, with a budget for activations."""
    import torch._functorch.config as settings

    settings.activation_memory_budget = ACTIVATION_BUDGET
    return compile_blocks(job, model, device)


def save_on_cpu(job: Job, model: nn.Module, device: str) -> Training:
    """`torch.autograd.graph.save_on_cpu`, pinned."""
    import torch

    training = Training(job, model, device)
    training.around = partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
    return training


def offload_by_trl(job: Job, model: nn.Module, device: str) -> Training:
    """TRL's activation offloading, which its trainers hold during both passes."""
    from trl.models.activation_offloading import get_act_offloading_ctx_manager

    training = Training(job, model, device)
    offload = get_act_offloading_ctx_manager(model)
    training.around = lambda: offload
    training.spans_backward = True
    return training


def offload_by_torchtune(job: Job, model: nn.Module, device: str) -> Training:
    """torchtune's activation offloading, which its recipes hold during the forward pass."""
    from torchtune.training import get_act_offloading_ctx_manager

    # Where it looks for the layer whose activations stay.
    model.output = model.head
    training = Training(job, model, device)
    offload = get_act_offloading_ctx_manager(model, enable_activation_offloading=True)
    training.around = lambda: offload
    return training


def optimizer_of_torchao(job: Job, model: nn.Module, device: str) -> Training:
    """torchao's optimizer, which steps on the host."""
    import torch
    from torchao.optim import CPUOffloadOptimizer

    # With gradients summed over batches they have to stay on the device.
    optimizer = CPUOffloadOptimizer(
        model.parameters(),
        torch.optim.AdamW,
        offload_gradients=job.micro_batches == 1,
        lr=RATE,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=DECAY,
        fused=True,
    )
    return Training(job, model, device, optimizer)


def fsdp2(job: Job, model: nn.Module, device: str) -> Training:
    """FSDP2 on one rank, parameters, gradients and optimizer in host memory."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    join_alone(device)
    offload = CPUOffloadPolicy(pin_memory=device == "cuda")
    for layer in model.layers:
        fully_shard(layer, offload_policy=offload)
    fully_shard(model, offload_policy=offload)
    return Training(job, model, device)


def zero_offload(stage: int, job: Job, model: nn.Module, device: str) -> Training:
    """DeepSpeed ZeRO-Offload; stage 3 keeps parameters in host memory as well."""
    import deepspeed

    join_alone(device)
    engine, *_ = deepspeed.initialize(model=model, config=zero_config(stage, job))
    return ZeroTraining(stage, job, engine, device)


def zero_config(stage: int, job: Job) -> dict:
    """What `deepspeed.initialize` takes."""
    from decoders import SHAPES

    on_host = {"device": "cpu", "pin_memory": True}
    zero = {"stage": stage, "offload_optimizer": on_host}
    if stage == 3:
        zero["offload_param"] = on_host
    precision = (
        {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
        if job.weights == "float32"
        else {"bf16": {"enabled": True}}
    )
    rates = {"lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}
    return {
        "train_micro_batch_size_per_gpu": SHAPES[job.shape].batch,
        "gradient_accumulation_steps": job.micro_batches,
        "optimizer": {"type": "AdamW", "params": rates},
        "zero_optimization": zero,
        **precision,
    }


class ZeroTraining(Training):
    """A step as DeepSpeed's engine wants it: each batch ends with a call of its `step`."""

    def __init__(self, stage: int, job: Job, engine, device: str) -> None:
        super().__init__(job, engine.module, device, engine.optimizer)
        self.stage = stage
        self.engine = engine

    def micro_batch(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Adds to the gradients, and steps after the last batch."""
        loss = self.engine(ids, targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def update(self) -> None:
        """The engine has done it."""

    def own_weights(self) -> list[torch.Tensor] | None:
        """Stage 3 keeps parameters where a model does not show them."""
        return None if self.stage == 3 else super().own_weights()


def paged(name: str, job: Job, model: nn.Module, device: str) -> Training:
    """An optimizer of bitsandbytes whose state lies in managed memory."""
    import bitsandbytes

    make = getattr(bitsandbytes.optim, name)
    optimizer = make(model.parameters(), RATE, BETAS, EPSILON, weight_decay=DECAY)
    return Training(job, model, device, optimizer)


def join_alone(device: str) -> None:
    """A process group of this process alone, without a network."""
    import torch.distributed as dist

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


@dataclass(frozen=True)
class Method:
    """One row's name, what it imports, and how its model and optimizer are made."""

    name: str
    apply: Callable[[Job, nn.Module, str], Training]
    # Steps to train: enough to settle.
    steps: int
    # The package beside PyTorch that it needs.
    package: str | None = None
    # Whether the arithmetic is that of plain PyTorch, so that all bits have to be the same.
    is_exact: bool = True
    # Whether it works without a GPU.
    on_host: bool = True

    def lacks(self, has_gpu: bool) -> str | None:
        """Why it cannot run here; None if it can."""
        if self.package and find_spec(self.package) is None:
            return "not installed"
        if not has_gpu and not self.on_host:
            return "needs a GPU"
        return None


PLAIN = "plain"
SMARTSWAP = "smartswap"

# In the order in which they run: what takes long and tells less comes last.
METHODS = [
    Method(PLAIN, Training, 8),
    Method("checkpoint", recompute_blocks, 6),
    Method("selective-checkpoint", recompute_selected, 6),
    Method("compile", compile_blocks, 6, is_exact=False),
    Method("compile-budget", compile_with_budget, 6, is_exact=False),
    Method("bnb-paged", partial(paged, "PagedAdamW"), 5, "bitsandbytes", False, False),
    Method("bnb-paged-8bit", partial(paged, "PagedAdamW8bit"), 5, "bitsandbytes", False, False),
    Method(SMARTSWAP, Training, 24, "smartswap"),
    Method("torchao-offload", optimizer_of_torchao, 4, "torchao", False, False),
    Method("fsdp2-offload", fsdp2, 4, is_exact=False),
    Method("zero2-offload", partial(zero_offload, 2), 4, "deepspeed", False),
    Method("zero3-offload", partial(zero_offload, 3), 4, "deepspeed", False),
    Method("trl-offload", offload_by_trl, 4, "trl", on_host=False),
    Method("torchtune-offload", offload_by_torchtune, 4, "torchtune", on_host=False),
    Method("save-on-cpu", save_on_cpu, 4),
]


def method(name: str) -> Method:
    """The method of this name."""
    for candidate in METHODS:
        if candidate.name == name:
            return candidate
    sys.exit(f"no method {name!r}; there are {', '.join(m.name for m in METHODS)}")
