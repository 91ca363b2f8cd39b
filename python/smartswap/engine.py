"""The engine of this process: opened, asked, closed."""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import _native, page, report_folder, terminal
from .agreement import Agreement
from .chunks import CAP_DIVISOR, ChunkedOps
from .compiled import CompiledCode
from .deferred import DeferredUpdates, Trial
from .devices import check_device, choose_device, total_bytes
from .errors import (
    AlreadyEnabledError,
    NotEnabledError,
    SettingsError,
    SmartSwapError,
)
from .extensions import Extensions
from .faults import Faults
from .graphs import CapturedGraphs
from .kernels import RegisteredKernels
from .loop import StepEnds
from .order import ToldOrder
from .pointers import RawPointers
from .progress import Progress, run_summary, tell_news
from .ranks import Ranks
from .settings import Settings
from .sizes import format_size
from .status import Status
from .tensor_files import TensorFiles

__all__ = [
    "beside_step",
    "device",
    "disable",
    "enable",
    "explain",
    "is_enabled",
    "reset_peaks",
    "save_report",
    "save_trace",
    "stats",
    "step",
    "swapping",
]

_log = logging.getLogger("smartswap")
_AUTOMATIC, _BESIDE = 0, 1


@dataclass
class _Open:
    """What one opened engine consists of."""

    settings: Settings
    device: str
    ranks: Ranks
    agreement: Agreement
    ends: StepEnds
    chunks: ChunkedOps
    pointers: RawPointers
    compiled: CompiledCode
    extensions: Extensions
    files: TensorFiles
    faults: Faults
    graphs: CapturedGraphs
    kernels: RegisteredKernels
    order: ToldOrder
    updates: DeferredUpdates
    progress: Progress
    status: Status

    def remove(self) -> None:
        """Undoes what was changed in PyTorch."""
        self.order.remove()
        self.graphs.remove()
        self.kernels.remove()
        self.faults.remove()
        self.files.remove()
        self.extensions.remove()
        self.compiled.remove()
        self.ends.remove()
        self.pointers.remove()
        self.chunks.remove()


_open: _Open | None = None


def enable(
    memory: str | int | None = None,
    *,
    host_memory: str | int | None = None,
    prefer: str | None = None,
    strategy: str | None = None,
    device: str | torch.device | None = None,
    min_block: str | int | None = None,
    config: str | None = None,
    report: str | None = None,
    record: str | None = None,
    manual_steps: bool = False,
    verify: bool = False,
    rank_wait: float | None = None,
    defer_updates: str | None = None,
) -> None:
    """Opens the engine. Call it before the first tensor is made on the device.

    memory: cap on device memory, such as "24GiB", "60%" of the device, or bytes; all that is free
        if left out, or if it is more than the device has.
    host_memory: cap on pinned host memory for all ranks of this node together.
    prefer: "performance" moves activations first, "memory" optimizer state as well; whichever makes
        the faster step if left out.
    strategy: "joint", "swap", "recompute" or "keep".
    device: "host", "cuda:0", "npu:0"; that of this rank if left out.
    min_block: blocks of at least this size move.
    config: a TOML file with more settings; what is passed here wins.
    report: a folder for the report, which is written at the end.
    record: a file for the trace of each newly recorded step, for `smartswap plan`.
    manual_steps: you call smartswap.step(); otherwise optimizers end the steps.
    verify: sum the bytes of each block that moves when an op has written it, and again before each
        use: a step in which the sums differ ends with a RuntimeError. Steps take longer.
    rank_wait: ranks of a process group choose their plans alike, by the times of the slowest. One
        that waits so many seconds for the others goes on alone for good; 30 if left out. With 0
        each rank plans for itself from the start.
    defer_updates: whether updates of torch.optim's optimizers wait until somebody uses a tensor of
        theirs, so that their traffic goes on under compute: "on", "off", or "auto", which tries it
        where the optimizer waits for copies and keeps it if steps become shorter; ranks decide
        together. Bits are the same.

    Raises SettingsError, AlreadyEnabledError, EnabledTooLateError, IncompatibleTorchError.
    """
    wishes = {
        "memory": memory,
        "host_memory": host_memory,
        "prefer": prefer,
        "strategy": strategy,
        "device": device,
        "min_block": min_block,
        "config": config,
        "report": report,
        "record": record,
        "manual_steps": manual_steps,
        "verify": verify,
        "rank_wait": rank_wait,
        "defer_updates": defer_updates,
    }
    open_with(Settings.parse(**wishes))


def open_with(settings: Settings) -> None:
    """Opens the engine with settings that were checked already."""
    global _open
    if is_enabled():
        raise AlreadyEnabledError(
            "SmartSwap is enabled already, and a process has one engine: "
            "call smartswap.disable() first"
        )
    ranks = Ranks.read()
    device = choose_device(settings.device, ranks)
    adapter = _native.adapter()
    if adapter.is_open():
        # One that was disabled while tensors of it lived; they may be gone by now.
        gc.collect()
        adapter.close()
    if adapter.is_open():
        raise AlreadyEnabledError(
            "tensors of an earlier SmartSwap engine live on in this process, and it has one "
            "engine: delete them first, or start a new process"
        )
    check_device(device, _native.built_for())
    try:
        adapter.open(**settings.for_adapter(device, ranks, lambda: total_bytes(device)))
    except (SmartSwapError, torch.OutOfMemoryError):
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from error
    try:
        _open = _assemble(adapter, settings, device, ranks)
    except BaseException:
        adapter.close()
        raise
    _log.info("enabled on %s, cap %s", device, format_size(adapter.stats()["limit_bytes"]))


def _count_settled(now: dict[str, Any]) -> int:
    """How many steps were Stable so far, under a plan that was made for their like."""
    return now["steps_by_stage"]["Stable"] - now["branches"]


def _assemble(adapter: Any, settings: Settings, device: str, ranks: Ranks) -> _Open:
    limit_bytes = adapter.stats()["limit_bytes"]
    pointers = RawPointers(adapter)
    updates = DeferredUpdates(adapter, limit_bytes, is_on=settings.defer_updates == "on")
    trial = None
    if settings.defer_updates == "auto":
        trial = Trial(
            updates,
            lambda: _count_settled(adapter.stats()),
            explain,
            lambda: json.loads(adapter.deferral()),
        )
    agreement = Agreement(adapter, settings.rank_wait_s, trial)
    opened = _Open(
        settings=settings,
        device=device,
        ranks=ranks,
        agreement=agreement,
        ends=StepEnds(_end_step),
        chunks=ChunkedOps(limit_bytes // CAP_DIVISOR, updates),
        pointers=pointers,
        compiled=CompiledCode(adapter, pointers, is_capped=settings.has_cap),
        extensions=Extensions(adapter),
        files=TensorFiles(),
        faults=Faults(adapter),
        graphs=CapturedGraphs(adapter, _end_step),
        kernels=RegisteredKernels(adapter),
        order=ToldOrder(adapter),
        updates=updates,
        progress=Progress(trial),
        status=Status(device, ranks),
    )
    try:
        opened.chunks.install()
        opened.pointers.install()
        opened.compiled.install()
        opened.extensions.install()
        opened.faults.install(device)
        opened.graphs.install(device)
        opened.kernels.install()
        opened.order.install(device)
        if device == "host":
            opened.files.install()
        if not settings.manual_steps:
            opened.ends.install()
        if settings.verify:
            adapter.verify(True)
    except BaseException:
        opened.remove()
        raise
    atexit.register(_at_exit)
    return opened


def is_enabled() -> bool:
    """Whether the engine of this process is open."""
    return _open is not None


def open_adapter() -> Any:
    """The compiled adapter of the open engine. Raises NotEnabledError if none is open."""
    if not is_enabled():
        raise NotEnabledError(
            "SmartSwap is not enabled: call smartswap.enable(memory='24GiB') before the first "
            "tensor is made on the device, or start the script with: python -m smartswap script.py"
        )
    return _native.adapter()


def device() -> torch.device:
    """The device whose memory the engine manages."""
    open_adapter()
    assert _open is not None
    return torch.device("cpu" if _open.device == "host" else _open.device)


def disable() -> None:
    """Brings all memory home and closes the engine. Tensors stay valid.

    Does nothing if no engine is open. Raises torch.OutOfMemoryError, and leaves the engine open,
    if what lives does not fit under the cap at once.
    """
    global _open
    if not is_enabled():
        return
    assert _open is not None
    _finish(_open)
    _native.adapter().close()
    _open.agreement.leave()
    _open.remove()
    atexit.unregister(_at_exit)
    _open = None


def step() -> None:
    """Ends the training step, for loops without an optimizer of torch.optim in which a step has
    several backward passes.

    From the first call on, optimizers end no steps.
    """
    open_adapter()
    assert _open is not None
    _open.ends.remove()
    _end_step()


def _end_step() -> None:
    assert _open is not None
    adapter = _native.adapter()
    if adapter.note_step_end():
        # A graph captures it: its replays end steps.
        return
    _open.agreement.end_step()
    _open.progress.tell(adapter, explain, is_first_rank=_open.ranks.rank == 0)
    _open.status.tell(adapter)


def stats() -> dict[str, Any]:
    """Counters of the engine: bytes as {"current", "peak"}, times in microseconds.

    "plan" tells the plan of the running step from others, 0 without one; "agreeing_ranks" is how
    many ranks choose alike, 1 if this one chooses alone. "held" lists who keeps memory on the
    device through its address, and until when. "recipes" says what can be made again: calls of
    operators that are kept for it, with their bytes of host memory; kinds of calls that gave the
    same bits twice, operators that did not, and why other calls are not kept. By operator,
    "went_without_memory" counts calls that found no room for a workspace and went on without,
    whose last bits may differ from those with more memory. "verified_uses" counts uses of blocks
    before which their bytes were compared, with `verify`. "deferred_updates" counts slices of
    optimizer updates that waited until somebody used a tensor of theirs. "outside_bytes" is what
    counts towards the cap for tensors that were made in `smartswap.outside()`.
    """
    adapter = open_adapter()
    assert _open is not None
    return {
        **adapter.stats(),
        "held": json.loads(adapter.held()),
        "recipes": adapter.recipes(),
        "went_without_memory": adapter.went_without_memory(),
        "verified_uses": adapter.verified_uses(),
        "deferred_updates": _open.updates.n_deferred,
        "agreeing_ranks": _open.agreement.n_ranks,
    }


def reset_peaks() -> None:
    """Sets the peaks in `stats()` to the current values."""
    open_adapter().reset_peaks()


def explain() -> dict[str, Any]:
    """What the engine decided and why."""
    return json.loads(open_adapter().explain())


def save_trace(path: str | os.PathLike[str]) -> None:
    """Saves the last recorded step as a file that `smartswap plan` reads."""
    open_adapter().save_trace(os.fspath(path))


def save_report(folder: str | os.PathLike[str]) -> None:
    """Writes what is known of the run into a folder, which is made if need be.

    It is about one step: the last Stable one that followed a plan; if there was none the last
    Stable one, or the last that was recorded. `explain.json` says what became of each block and
    why, `trace.json` is the recorded step, `plan.json` the plan, `step.html` a page with time and
    memory over the step, and `timeline.json` the same for Perfetto. Now and then a Stable step is
    measured: `lanes.json` says when each operator and copy of it ran, and both pictures show it
    below what was predicted. Where steps differ in their sizes, `steps.json` has those that were
    recorded, a line each, for `smartswap plan`. `caps.json` is what `advise()` says, but of steps
    of more than 20,000 operators, and the page draws it; `stats.json` is what `stats()` says.
    """
    adapter = open_adapter()
    os.makedirs(folder, exist_ok=True)
    adapter.save_report(os.fspath(folder))
    with open(os.path.join(folder, "stats.json"), "w", encoding="utf-8") as file:
        json.dump(stats(), file, indent=2)
    page.draw(Path(folder))
    report_folder.note_written(folder)


@contextmanager
def swapping(memory: str | int | None = None, **settings: Any) -> Iterator[None]:
    """`with smartswap.swapping(memory="24GiB"):` is enable() before and disable() after.

    Takes what `enable` takes.
    """
    enable(memory, **settings)
    try:
        yield
    except BaseException:
        # The error of the body is what matters; the engine may not be able to close after it.
        with suppress(Exception):
            disable()
        raise
    disable()


@contextmanager
def beside_step() -> Iterator[None]:
    """Operators of this thread in here are not part of the training step: an evaluation, say.

    Passes with gradients off before a step's first op are found without it.
    """
    adapter = open_adapter()
    adapter.set_aside(_BESIDE)
    try:
        yield
    finally:
        adapter.set_aside(_AUTOMATIC)


def _forget_after_fork() -> None:
    """A forked child has no engine: its threads stayed with the parent."""
    global _open
    opened, _open = _open, None
    if opened is not None:
        opened.agreement.forget()
        opened.remove()


def _update_before_fork() -> None:
    """A child has its parent's tensors as they are, and cannot run what waits."""
    if _open is not None:
        _open.updates.run_all()


os.register_at_fork(before=_update_before_fork, after_in_child=_forget_after_fork)


def _report_folder(opened: _Open) -> str:
    folder = opened.settings.report or ""
    ranks = opened.ranks
    return folder if ranks.n_ranks == 1 else os.path.join(folder, f"rank{ranks.rank}")


def _write_report(opened: _Open) -> None:
    folder = _report_folder(opened)
    try:
        with report_folder.claimed(folder):
            save_report(folder)
    except (OSError, RuntimeError) as error:
        _log.error("the report could not be written to %s: %s", folder, error)


def summary() -> str:
    """One line about the run so far."""
    return run_summary(stats())


def _finish(opened: _Open) -> None:
    opened.progress.close()
    terminal.clear()
    opened.status.remove()
    opened.updates.run_all()
    now = stats()
    if now["allocations"] == 0:
        # A launcher, or a loader worker: it never used the device.
        return
    if opened.settings.report is not None:
        _write_report(opened)
    tell_news(_native.adapter())
    # Memory had to be found on demand all the time, and nobody else says so.
    short = now["requested_bytes"]["peak"] > now["limit_bytes"]
    has_failed = _has_failed()
    is_unplanned = now["steps"] == 0 and short and not has_failed
    level = logging.WARNING if is_unplanned else logging.INFO
    if _log.isEnabledFor(level):
        _log.log(level, "%s", run_summary(now, has_failed=has_failed))


def _has_failed() -> bool:
    """Whether an error has ended the script."""
    return hasattr(sys, "last_value")


def _at_exit() -> None:
    """The report and the summary of a run that ends with the engine open."""
    if not is_enabled():
        return
    assert _open is not None
    _finish(_open)
    _open.agreement.leave()
