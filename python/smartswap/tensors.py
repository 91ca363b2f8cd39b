"""The tensors among a call's arguments, also inside containers, descriptors and wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["tensors_in"]

# An optimizer's state in a list in a dict in an object: nobody nests deeper in a call.
_DEPTH_MAX = 6


def tensors_in(value: Any, depth: int = _DEPTH_MAX) -> Iterator[torch.Tensor]:
    """Each tensor in `value` that has memory of its own, some perhaps twice.

    Looks into lists, tuples, sets, dicts, the attributes of other objects (descriptors of Triton,
    quantized weights), and the parts of tensors that wrap others.
    """
    if isinstance(value, torch.Tensor):
        parts = getattr(value, "__tensor_flatten__", None)
        if parts is None:
            yield value
            return
        for name in parts()[0]:
            yield from tensors_in(getattr(value, name), depth)
    elif depth == 0 or value is None or isinstance(value, (str, bytes, int, float, complex, type)):
        return
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from tensors_in(part, depth - 1)
    elif not callable(value) and isinstance(attributes := getattr(value, "__dict__", None), dict):
        for part in list(attributes.values()):
            yield from tensors_in(part, min(depth - 1, 1))
