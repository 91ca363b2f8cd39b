"""The flags of Megatron-style training scripts."""

from __future__ import annotations

import argparse
from typing import Any

from . import engine
from .errors import SettingsError

__all__ = ["add_arguments", "check_arguments", "enable_for"]

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

    Give the parsed arguments to `enable_for`. Returns the parser, so that it can be a Megatron
    script's `extra_args_provider`.
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
    group.add_argument(
        "--smart-swap-config",
        metavar="FILE.toml",
        help="settings, those of SmartSwap for Ascend in the table [smartswap]: the cap among them",
    )
    return parser


def enable_for(args: Any, **settings: Any) -> bool:
    """Opens the engine if a flag of `add_arguments` asks for it, and says whether it is open.

    Call it before the first tensor is made on the device. An engine that is open already, since
    the script was started with `python -m smartswap`, stays as it is.

    args: what the parser or a YAML file gave, by the flags' names.
    settings: what `enable` takes; it wins over the file that --smart-swap-config names.

    Raises SettingsError where the flags contradict others, and what `enable` raises.
    """
    check_arguments(args)
    flags = ("smart_swap", "adaptive_memory_optimization", "virtual_optimizer")
    if not engine.is_enabled() and any(getattr(args, flag, None) for flag in flags):
        engine.enable(**{"config": getattr(args, "smart_swap_config", None)} | settings)
    return engine.is_enabled()


def _budgets(args: Any) -> list[str | float] | None:
    """What --virtual-optimizer says: a list, but in a YAML file one value may stand alone."""
    value = getattr(args, "virtual_optimizer", None)
    return [value] if isinstance(value, (str, int, float)) else value


def _is_budget(value: Any) -> bool:
    return value == "all" or (isinstance(value, (int, float)) and 0 <= value < 1 << 20)


def _check_conflicts(args: Any, flag: str, conflicts: Any) -> None:
    for attribute, is_set, name in conflicts:
        value = getattr(args, attribute, None)
        if value is not None and is_set(value):
            raise SettingsError(f"{flag} and {name} cannot be used together; leave one of them out")


def check_arguments(args: Any, n_stages: int | None = None) -> None:
    """Raises SettingsError where the flags of `add_arguments` contradict others.

    n_stages: the number of pipeline stages, `args.pipeline_model_parallel_size` if left out.
    """
    budgets = _budgets(args)
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
    if not all(_is_budget(budget) for budget in budgets):
        raise SettingsError(f"--virtual-optimizer takes 'all' or GiB from 0 up, not {budgets}")
