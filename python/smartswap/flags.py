"""The flags of Megatron-style training scripts."""

from __future__ import annotations

import argparse
from typing import Any

from .errors import SettingsError

__all__ = ["add_arguments", "check_arguments"]

# What each feature cannot run beside: the attribute, when it is set, and its name for people.
_ADAPTIVE_CONFLICTS = (
    ("ampipe_degree", lambda value: value > 1, "--ampipe-degree above 1"),
    ("adaptive_recompute_device_size", lambda value: value > 0, "adaptive recompute"),
    ("adaptive_recompute_device_swap", bool, "--adaptive-recompute-device-swap"),
    ("recompute_granularity", bool, "--recompute-granularity"),
    ("recompute_method", bool, "--recompute-method"),
    ("recompute_activation_function", bool, "--recompute-activation-function"),
    ("swap_attention", bool, "--swap-attention"),
    ("recompute_in_bubble", bool, "--recompute-in-bubble"),
    ("memory_fragmentation", bool, "--memory-fragmentation"),
)
_SMART_CONFLICTS = (
    ("adaptive_recompute_device_size", lambda value: value > 0, "adaptive recompute"),
    ("adaptive_memory_optimization", bool, "--adaptive-memory-optimization"),
)


def _budget(text: str) -> str | float:
    if text == "all":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is neither 'all' nor a number of GiB") from None


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --smart-swap, --virtual-optimizer and --adaptive-memory-optimization to a parser.

    Give the parsed arguments to `check_arguments`. Returns the parser.
    """
    group = parser.add_argument_group(title="SmartSwap")
    group.add_argument(
        "--smart-swap",
        action="store_true",
        help="train under a memory cap: tensors move to host memory and back as planned",
    )
    group.add_argument(
        "--virtual-optimizer",
        type=_budget,
        nargs="+",
        default=None,
        metavar="all|GIB",
        help="optimizer state in host memory: all of it, GiB for every pipeline stage, or GiB for "
        "each of them",
    )
    group.add_argument(
        "--adaptive-memory-optimization",
        action="store_true",
        help="train under a memory cap: keep, move or recompute, whichever costs least",
    )
    return parser


def _check_conflicts(args: Any, flag: str, conflicts: Any) -> None:
    for attribute, is_set, name in conflicts:
        value = getattr(args, attribute, None)
        if value is not None and is_set(value):
            raise SettingsError(f"{flag} and {name} cannot be used together; leave one of them out")


def check_arguments(args: Any, n_stages: int | None = None) -> None:
    """Raises SettingsError where the flags of `add_arguments` contradict others.

    n_stages: the number of pipeline stages, `args.pipeline_model_parallel_size` if left out.
    """
    budgets = getattr(args, "virtual_optimizer", None)
    if getattr(args, "smart_swap", False):
        _check_conflicts(args, "--smart-swap", _SMART_CONFLICTS)
    if getattr(args, "adaptive_memory_optimization", False):
        _check_conflicts(args, "--adaptive-memory-optimization", _ADAPTIVE_CONFLICTS)
    if budgets is None:
        return
    if getattr(args, "optimizer_selection", None) == "fused_ema_adamw":
        raise SettingsError(
            "--virtual-optimizer and --optimizer-selection fused_ema_adamw cannot be used "
            "together; choose another optimizer"
        )
    stages = n_stages or getattr(args, "pipeline_model_parallel_size", None) or 1
    if len(budgets) not in (1, stages):
        raise SettingsError(
            f"--virtual-optimizer has {len(budgets)} values for {stages} pipeline stages; give "
            "one value, or one for each stage"
        )
    if any(budget != "all" and not 0 <= budget < 1 << 20 for budget in budgets):
        raise SettingsError(f"--virtual-optimizer takes 'all' or GiB from 0 up, not {budgets}")
