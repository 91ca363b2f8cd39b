"""Training loops that are compared: each yields its loss after every step, and returns tensors."""

import importlib

import torch

STEPS = 26
FILES = ("loops_autograd", "loops_errors", "loops_models", "loops_ranks", "loops_steps")


def find(name):
    """The workload of this name."""
    for file in FILES:
        found = getattr(importlib.import_module(file), name, None)
        if found is not None:
            return found
    raise LookupError(f"no workload '{name}'")


def final(model, *optimizers):
    """All that training made: weights, buffers, gradients and the optimizers' state."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[f"weight {name}"] = parameter
        if parameter.grad is not None:
            tensors[f"gradient {name}"] = parameter.grad
    tensors.update({f"buffer {name}": buffer for name, buffer in model.named_buffers()})
    for number, optimizer in enumerate(optimizers):
        for place, state in enumerate(optimizer.state.values()):
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"state {number} {place} {name}"] = value
    return tensors
