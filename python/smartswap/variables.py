"""Settings from environment variables, and an engine for scripts that are started without us.

`SMARTSWAP_MEMORY=24GiB python train.py`: PyTorch calls `smartswap_autoload` when it has been
imported. On an accelerator the engine is opened when the script first uses the device, so that
processes which never do, such as launchers and loader workers, are left alone.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from . import engine, log
from .errors import SettingsError
from .settings import NAMES, SWITCHES, Settings

__all__ = ["open_engine", "open_when_used", "wishes"]

_PREFIX = "SMARTSWAP_"
_LOG_LEVEL = "log_level"
# The process in which Inductor compiles. It asks for the device's properties, which counts as use,
# and makes no tensor: an engine there would hold a context's memory beside the cap.
_COMPILE_WORKER = os.path.join("torch", "_inductor", "compile_worker", "__main__.py")
_BOOLEANS = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def wishes(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the variables ask for, by setting, `log_level` among them. An empty one asks nothing.

    Raises SettingsError for one whose name is nearly that of a setting. Others that begin alike
    are somebody else's.
    """
    names = (*NAMES, _LOG_LEVEL)
    found: dict[str, Any] = {}
    for variable, text in (os.environ if environment is None else environment).items():
        if not variable.startswith(_PREFIX) or not text:
            continue
        name = variable.removeprefix(_PREFIX).lower()
        if name in names:
            found[name] = _BOOLEANS.get(text.lower(), text) if name in SWITCHES else text
        elif close := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
            meant = _PREFIX + close[0].upper()
            raise SettingsError(f"unknown variable {variable}; did you mean {meant}?")
    return found


def open_engine(**said: Any) -> None:
    """Opens the engine as the variables ask, and what is said here, which wins.

    Raises what `enable` raises.
    """
    level, settings = _asked(**said)
    log.to_stderr(level)
    engine.open_with(settings)


def _asked(**said: Any) -> tuple[str, Settings]:
    """The level of messages and the settings that the variables ask for, and what is said here."""
    asked = wishes() | said
    level = log.checked(asked.pop(_LOG_LEVEL, "warning"), _PREFIX + _LOG_LEVEL.upper())
    return level, Settings.parse(**asked)


def open_when_used() -> None:
    """Opens the engine when the device is first used, or now if that is the host.

    That raises what `enable` raises, and a variable that is wrong is told of at once. Does nothing
    where our own command line runs, which opens it itself, and where Inductor compiles.
    """
    if ("-m", "smartswap") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
        return
    if any(word.endswith(_COMPILE_WORKER) for word in sys.orig_argv):
        return
    device = _module_of(os.environ.get("SMARTSWAP_DEVICE", ""))
    if device is None:
        _open()
    else:
        _asked()
        device._lazy_call(_open)


def _open() -> None:
    # A script's own call comes first.
    if not engine.is_enabled():
        open_engine()


def _module_of(wish: str) -> Any:
    """The module of PyTorch whose device will be used: `torch.cuda`, `torch.npu`; None: the host.

    Asks no driver that a forked child could not ask again.
    """
    kind = wish.partition(":")[0]
    if kind in ("host", "cpu"):
        return None
    if kind == "cuda" or (not kind and torch.cuda.device_count() > 0):
        return torch.cuda
    if importlib.util.find_spec("torch_npu") is not None:
        # It is another extension that PyTorch loads by itself, perhaps after this one.
        return importlib.import_module("torch_npu").npu
    return None
