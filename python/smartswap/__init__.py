"""SmartSwap: trains PyTorch models under a cap on device memory.

`python -m smartswap --memory 24GiB train.py` runs a script as it is. From code, call
`smartswap.enable(memory="24GiB")` before the first tensor is made on the device.
"""

from __future__ import annotations

# First, as it calls `smartswap_autoload`, which imports the modules below.
import torch  # noqa: F401

from .advice import advise
from .callbacks import hugging_face_arguments, hugging_face_callback, lightning_callback
from .custom_ops import adapt_mem_func_wrapper
from .engine import (
    beside_step,
    disable,
    enable,
    explain,
    is_enabled,
    reset_peaks,
    save_report,
    save_trace,
    stats,
    step,
    summary,
    swapping,
)
from .errors import SmartSwapError
from .flags import add_arguments, check_arguments, enable_for
from .outside import outside
from .paths import include_path, library_path
from .suspension import resume, suspend, suspended
from .swapped import empty_with_swapped_memory, is_swap_tensor
from .virtual import virtual_optimizer

__all__ = [
    "SmartSwapError",
    "adapt_mem_func_wrapper",
    "add_arguments",
    "advise",
    "beside_step",
    "check_arguments",
    "disable",
    "empty_with_swapped_memory",
    "enable",
    "enable_for",
    "explain",
    "hugging_face_arguments",
    "hugging_face_callback",
    "include_path",
    "is_enabled",
    "is_swap_tensor",
    "library_path",
    "lightning_callback",
    "outside",
    "reset_peaks",
    "resume",
    "save_report",
    "save_trace",
    "stats",
    "step",
    "summary",
    "suspend",
    "suspended",
    "swapping",
    "virtual_optimizer",
]
