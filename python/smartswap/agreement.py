"""Ranks that train together judge each step by the figures of all of them, so they choose alike."""

from __future__ import annotations

import ctypes
import logging
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .deferred import Told, Trial

__all__ = ["Agreement"]

_log = logging.getLogger("smartswap")

# `smartswap_round`: when the next round is.
_LATER, _NEXT_STEP, _AT_ONCE, _TIMES = range(4)
# `smartswap_role`.
_ALONE, _FOLLOWS, _LEADS = range(3)
_ALONE_KEY = "alone"
# Numbers in a message. All are as long, since gloo ends the process where lengths differ. The
# first two are its number: those of ranks that lost count differ too, and then all go on alone.
_MESSAGE = 512
_HEAD = 2
# Each engine of this process meets those of the other ranks that were opened as often.
_meetings = 0


@dataclass
class _Sent:
    """Numbers on their way."""

    work: Any
    message: array[float]
    count: int

    def largest(self) -> list[float]:
        """Of each number the largest.

        Raises RuntimeError if a rank left, is too late, or has lost count of the messages.
        """
        own = self.message[0]
        self.work.wait()
        if (self.message[0], -self.message[1]) != (own, own):
            raise RuntimeError("the ranks are out of step with each other")
        return self.message[_HEAD : _HEAD + self.count].tolist()


class _Peers:
    """Connections of its own to all ranks, through gloo: they use neither the device nor the
    script's process groups.

    No `new_group`: it numbers the groups of the process, and where only some ranks run under
    SmartSwap, the script's later groups would get different names. No store either: an all-reduce
    goes on while the next step runs, and does not load one rank with what all have to say.
    """

    def __init__(self, wait_s: float) -> None:
        global _meetings
        _meetings += 1
        rank, self.count = dist.get_rank(), dist.get_world_size()
        store = dist.distributed_c10d._get_default_store()
        store = dist.PrefixStore(f"smartswap/{_meetings}", store)
        if store.check([_ALONE_KEY]):
            raise RuntimeError("another rank gave up waiting")
        try:
            timeout = timedelta(seconds=wait_s)
            self._group = dist.ProcessGroupGloo(store, rank, self.count, timeout=timeout)
        except Exception:
            # Whoever comes later need not wait.
            store.set(_ALONE_KEY, "1")
            raise
        self._n_sent = 0
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.MAX

    def send(self, numbers: Sequence[float]) -> _Sent:
        """Begins to find the largest of each of a few numbers over all ranks."""
        self._n_sent += 1
        message = array("d", bytes(8 * _MESSAGE))
        message[0], message[1] = self._n_sent, -self._n_sent
        message[_HEAD : _HEAD + len(numbers)] = array("d", numbers)
        # Python's memory: the engine's may move, and its operators are the script's.
        tensor = torch.frombuffer(message, dtype=torch.float64)
        return _Sent(self._group.allreduce([tensor], self._options), message, len(numbers))

    def largest(self, numbers: Sequence[float]) -> list[float]:
        """Of each of any number of numbers the largest. Waits for the other ranks."""
        size = _MESSAGE - _HEAD
        parts = (numbers[start : start + size] for start in range(0, len(numbers), size))
        return [number for part in parts for number in self.send(part).largest()]

    def keep_for_ever(self) -> None:
        """Never closes: in a forked child the threads that would have to end are not there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))


class Agreement:
    """Ends steps, and judges them together with the other ranks where there are any.

    Ranks meet at the first step that ends with PyTorch's default process group there, which all
    of them reach, and go through a round after each step. While some rank searches they wait for
    the round; when all are Stable, its result is taken in one step later, so that nobody waits.
    Ranks take part whatever they do: one whose model fits and is not watched has nothing to say.

    A rank that did not hear of the others for `wait_s` seconds goes on alone for good, and so do
    they when they notice. What is trained never depends on any of this.

    trial: decided after each step, by all ranks together.
    """

    def __init__(self, adapter: Any, wait_s: float, trial: Trial | None = None) -> None:
        self._adapter = adapter
        self._wait_s = wait_s
        self._trial = trial
        self._name = "this rank"
        self._peers: _Peers | None = None
        self._is_over = wait_s <= 0 or not dist.is_available()
        self._sent: _Sent | None = None
        self._round = _NEXT_STEP

    @property
    def n_ranks(self) -> int:
        """How many ranks choose alike; 1 if this one chooses alone."""
        return 1 if self._peers is None else self._peers.count

    def end_step(self) -> None:
        """Ends the training step, and goes through a round with the other ranks."""
        if not self._is_over:
            self._meet_or_part()
        self._adapter.step()
        if self._peers is None:
            self._hear(self._tell())
        else:
            try:
                self._go_through_round(self._peers)
            except Exception as error:
                self._go_on_alone(error)
            except BaseException as error:
                # Ctrl-C, say: the script may go on, but the round is lost.
                self._go_on_alone(error)
                raise

    def _meet_or_part(self) -> None:
        has_group = dist.is_initialized()
        if self._peers is None and has_group and dist.get_world_size() > 1:
            self._name = f"rank {dist.get_rank()}"
            try:
                self._peers = _Peers(self._wait_s)
                self._adapter.share(_LEADS if dist.get_rank() == 0 else _FOLLOWS)
            except Exception as error:
                self._go_on_alone(error)
        elif self._peers is not None and not has_group:
            # The script is done with working together.
            self.leave()

    def _go_through_round(self, peers: _Peers) -> None:
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._round = self._take_in(peers, sent)
        while True:
            sent = peers.send([*self._tell(), *self._adapter.figures()])
            if self._round == _LATER:
                self._sent = sent
                return
            self._round = self._take_in(peers, sent)
            if self._round != _AT_ONCE:
                return

    def _take_in(self, peers: _Peers, sent: _Sent) -> int:
        numbers = sent.largest()
        count = len(Told._fields)
        self._hear(Told(*numbers[:count]))
        next_round, n_times = self._adapter.agree(numbers[count:])
        if next_round == _TIMES:
            times = peers.largest(self._adapter.times(n_times))
            next_round = self._adapter.agree_times(times)
        return next_round

    def _tell(self) -> Told:
        return Told() if self._trial is None else self._trial.tell()

    def _hear(self, told: Told) -> None:
        if self._trial is not None:
            self._trial.hear(told)

    def _go_on_alone(self, error: BaseException) -> None:
        text = str(error).partition("\n")[0]
        reason = self._reason(text or type(error).__name__)
        _log.warning("%s chooses its plans alone from here on: %s", self._name, reason)
        self._sent = None
        self._part()

    def _reason(self, text: str) -> str:
        if "timed out" in text.lower() or "timeout" in text.lower():
            return f"it waited {self._wait_s:g} s for the other ranks"
        return "another rank left" if "Connection" in text else text

    def _part(self) -> None:
        self._peers, self._is_over = None, True
        # If the engine fails, its next call says so.
        with suppress(Exception):
            self._adapter.share(_ALONE)

    def leave(self) -> None:
        """Chooses alone from here on, without a word. Waits for the running round: a rank that is
        about to take in its result would believe that this one was lost."""
        if self._sent is not None:
            with suppress(Exception):
                self._sent.largest()
            self._sent = None
        if self._peers is not None:
            self._part()

    def forget(self) -> None:
        """Ends in a forked child, where nothing of it can be used."""
        if self._peers is not None:
            self._peers.keep_for_ever()
        self._peers, self._sent, self._is_over = None, None, True
