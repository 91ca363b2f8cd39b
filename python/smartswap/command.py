"""The command line: `python -m smartswap [options] script.py args...`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import launch, log, variables
from .deferred import MODES
from .errors import SettingsError, SmartSwapError, nearest
from .settings import PREFERENCES, STRATEGIES

__all__ = ["Call", "main", "parse"]

_USAGE = "usage: python -m smartswap [options] (script.py | -m module) [args ...]"

# Each option, the setting that it gives, its value as shown in the help, and its explanation.
_OPTIONS = (
    ("--memory", "memory", "SIZE", "cap on device memory: 24GiB, or 60% of it [all that is free]"),
    ("--host-memory", "host_memory", "SIZE", "cap on pinned host memory of all ranks of a node"),
    ("--min-block", "min_block", "SIZE", "blocks of at least this size move [8MiB or less]"),
    ("--prefer", "prefer", "|".join(PREFERENCES), "what moves: activations or all [the faster]"),
    ("--strategy", "strategy", "|".join(STRATEGIES), "how memory is saved [joint]"),
    ("--device", "device", "NAME", "host, cuda:0 or npu:0 [the device of this rank]"),
    ("--report", "report", "FOLDER", "write what was done and why, at the end"),
    ("--record", "record", "FILE", "save each newly recorded step, for `smartswap plan`"),
    ("--rank-wait", "rank_wait", "SECONDS", "a rank that waits so long chooses alone [30]"),
    ("--defer-updates", "defer_updates", "|".join(MODES), "optimizer updates wait for use [auto]"),
    ("--config", "config", "FILE.toml", "more settings; flags win over it"),
    ("--log-level", "log_level", "|".join(log.LEVELS), "what is told on stderr [warning]"),
)
_SWITCHES = (
    ("--manual-steps", "manual_steps", "", "the script calls smartswap.step()"),
    ("--verify", "verify", "", "compare bytes before each use with those that were left"),
    ("-m", "", "MODULE", "run a module instead of a script"),
    ("-h, --help", "", "", "show this"),
    ("--version", "", "", "show the versions"),
)


@dataclass
class Call:
    """What a command line asks for."""

    wishes: dict[str, Any] = field(default_factory=dict)
    load: Callable[[], launch.Program] | None = None
    shows: str = ""


def help_text() -> str:
    """What `--help` prints."""
    lines = [_USAGE, "", "Runs a PyTorch training script under a memory cap.", "", "options:"]
    for flag, _, value, text in (*_OPTIONS, *_SWITCHES):
        lines.append(f"  {f'{flag} {value}'.strip():<40} {text}")
    lines += [
        "",
        "Each option may be an environment variable: SMARTSWAP_MEMORY=24GiB python train.py",
        "Under torchrun: torchrun --nproc-per-node 2 -m smartswap [options] script.py ...",
    ]
    return "\n".join(lines)


def parse(argv: Sequence[str]) -> Call:
    """Reads a command line. Raises SettingsError for what it does not know."""
    call = Call()
    names = {flag: name for flag, name, _, _ in _OPTIONS}
    switches = {flag: name for flag, name, _, _ in _SWITCHES if name}
    flags = [*names, *switches, "--help", "--version"]
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        flag, has_value, value = word.partition("=")
        if word == "-m" or (word.startswith("-m") and not word.startswith("--")):
            module = word[2:] or _take(rest, "-m", "a module")
            call.load = launch.load_module(module, rest)
            return call
        if word in ("-h", "--help"):
            return Call(shows="help")
        if word == "--version":
            return Call(shows="version")
        if word in switches:
            call.wishes[switches[word]] = True
        elif flag in names:
            text = value if has_value else _take(rest, flag, "a value")
            _set(call, names[flag], text)
        elif word == "--" and rest:
            call.load = launch.load_script(rest[0], rest[1:])
            return call
        elif word.startswith("-"):
            hint = nearest(flag, flags) or "; python -m smartswap --help lists all"
            raise SettingsError(f"unknown flag {flag}{hint}")
        else:
            call.load = launch.load_script(word, rest)
            return call
    raise SettingsError(f"which script?\n{_USAGE}")


def _take(rest: list[str], flag: str, what: str) -> str:
    if not rest:
        raise SettingsError(f"{flag} needs {what} behind it")
    return rest.pop(0)


def _set(call: Call, name: str, text: str) -> None:
    call.wishes[name] = log.checked(text, "--log-level") if name == "log_level" else text


def _versions() -> str:
    from importlib.metadata import version

    from . import _native

    built_for = _native.built_for()
    cuda = "with CUDA" if built_for.get("cuda") else "without CUDA"
    return f"smartswap {version('smartswap')}, built against PyTorch {built_for['torch']}, {cuda}"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what the command line asks for; leaves with code 2 if it cannot be begun."""
    try:
        call = parse(sys.argv[1:] if argv is None else argv)
        if call.shows:
            print(help_text() if call.shows == "help" else _versions())
            return
        assert call.load is not None
        variables.open_engine(**call.wishes)
    except (SmartSwapError, RuntimeError) as error:
        print(f"smartswap: {str(error).removeprefix('SmartSwap: ')}", file=sys.stderr)
        raise SystemExit(2) from None
    launch.run(call.load)
