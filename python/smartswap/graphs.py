"""CUDA graphs: a capture notes what it uses, and a replay is one op that uses it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .patches import Patches

__all__ = ["CapturedGraphs"]

# Where a graph keeps what its capture has noted.
_NOTED = "_smartswap_noted"


class CapturedGraphs:
    """Watches captures and replays of `torch.cuda.CUDAGraph`, whoever begins them.

    While a stream captures, none of its work runs. The memory that its operators name comes to the
    device all the same, as CUDA looks at that of copies, and may leave when the capture has ended.
    A replay brings all of it back first; so does `instantiate`, which looks at copies once more,
    of a graph that was captured with `keep_graph=True`.

    end_step: ends the training step. A graph that holds an optimizer's step ends one each time.
    """

    def __init__(self, adapter: Any, end_step: Callable[[], None]) -> None:
        self._adapter = adapter
        self._end_step = end_step
        self._patches = Patches()

    def install(self, device: str, kind: Any = torch.cuda.CUDAGraph) -> None:
        """Begins to watch on a CUDA device; on others there are no graphs."""
        if not device.startswith("cuda"):
            return
        for name, make in (
            ("capture_begin", self._beginning),
            ("capture_end", self._ending),
            ("instantiate", self._with_all_there),
            ("replay", self._replaying),
        ):
            function = getattr(kind, name)
            self._patches.replace(kind, name, functools.wraps(function)(make(function)))

    def remove(self) -> None:
        """Watches no more. All memory is on the device by then, and stays."""
        self._patches.restore()

    def _beginning(self, begin: Callable[..., None]) -> Callable[..., None]:
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> None:
            noted = self._adapter.Graph()
            noted.begin()
            try:
                begin(graph, *args, **kwargs)
            except BaseException:
                noted.end()
                raise
            setattr(graph, _NOTED, noted)

        return capture_begin

    def _ending(self, end: Callable[..., None]) -> Callable[..., None]:
        def capture_end(graph: Any) -> None:
            try:
                end(graph)
            finally:
                noted = getattr(graph, _NOTED, None)
                if noted is not None:
                    noted.end()

        return capture_end

    def _with_all_there(self, function: Callable[..., None]) -> Callable[..., None]:
        def run(graph: Any) -> None:
            noted = getattr(graph, _NOTED, None)
            if noted is None:
                # It was captured before there was memory that moves.
                function(graph)
            else:
                noted.run(functools.partial(function, graph))

        return run

    def _replaying(self, replay: Callable[..., None]) -> Callable[..., None]:
        run = self._with_all_there(replay)

        def run_and_count(graph: Any) -> None:
            run(graph)
            noted = getattr(graph, _NOTED, None)
            if noted is not None and noted.ends_step:
                self._end_step()

        return run_and_count
