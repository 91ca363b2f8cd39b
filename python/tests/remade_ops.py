"""Runs PyTorch's operator database with every output dropped as soon as it is made.

Each sample runs three times: twice as usual, which also shows whether the operator gives the same
bits at all, and once with each output that can be made again dropped at once. All three must give
the same bytes, leave their inputs alone, and leave the generators alike. Each finds other bytes in
freed memory, so that words that an operator leaves unwritten do not pass for its output.

    python remade_ops.py host float32 bfloat16          # what CI runs
    python remade_ops.py cuda:0 float32 bfloat16 --samples 1000

It prints what it counted as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import smartswap
from smartswap import _native

# What these make is whatever was in the memory.
_LEFT_OUT = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
_LEFT_OUT |= {"new_empty_strided"}
_MODES = ("plain", "autocast", "noncontiguous", "out")


def _bytes_of(tensor: torch.Tensor) -> bytes | None:
    if not _is_plain(tensor):
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    # Of a copy, as nothing is made again from what NumPy sees.
    copy = plain.reshape(-1).view(torch.uint8).clone()
    return copy.numpy().tobytes() if plain.numel() else b""


def _results(value: Any) -> list[Any]:
    leaves = []
    for leaf in tree_leaves(value):
        is_tensor = isinstance(leaf, torch.Tensor)
        leaves.append((str(leaf.dtype), leaf.shape, _bytes_of(leaf)) if is_tensor else repr(leaf))
    return leaves


def _overwrite(results: Any, inputs: list[Any], value: int) -> None:
    """Leaves other bytes in memory that is freed next; what shares memory with inputs stays."""
    taken = {leaf.untyped_storage()._cdata for leaf in inputs if _is_plain(leaf)}
    for leaf in tree_leaves(results):
        if _is_plain(leaf) and leaf.untyped_storage()._cdata not in taken:
            whole = torch.empty(0, dtype=torch.uint8, device=leaf.device)
            whole.set_(leaf.untyped_storage()).fill_(value)


def _is_plain(leaf: Any) -> bool:
    is_strided = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    return is_strided and not leaf.is_nested and not leaf.is_quantized


def _generator_state(device: str) -> bytes:
    state = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    return bytes(state.tolist())


def _into_arguments(function: Any, sample: Any) -> Any:
    """The operator as it writes into tensors that were there, which hold something else."""
    made = function(sample.input, *sample.args, **sample.kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        results = tree_map(torch.zeros_like, made)
        function(*args, **kwargs, out=results)
        return results

    return call


class Judge:
    """Counts samples by what became of them, and keeps what was wrong."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.adapter = _native.adapter()
        self.samples: Counter[str] = Counter()
        self.remade: set[str] = set()
        self.wrong: list[str] = []

    def run(self, name: str, function: Any, sample: Any) -> str:
        inputs = [leaf for leaf in tree_leaves((sample.input, sample.args, sample.kwargs))]
        before = _results(inputs)

        def call(drop: bool, left: int) -> tuple[list[Any], bytes]:
            torch.manual_seed(7)
            self.adapter.drop_at_once(drop)
            try:
                made = function(sample.input, *sample.args, **sample.kwargs)
            finally:
                self.adapter.drop_at_once(False)
            gave = _results(made), _generator_state(self.device)
            _overwrite(made, inputs, left)
            return gave

        first, second = call(False, left=0x55), call(False, left=0xAA)
        if first != second or _results(inputs) != before:
            return "gives other bits each time"
        runs = self.adapter.recipes()["runs"]
        try:
            third = call(True, left=0)
        except Exception as error:  # it did not fail before
            self.wrong.append(f"{name}: {error}")
            return "wrong"
        count = self.adapter.recipes()["runs"] - runs
        if third != first or _results(inputs) != before:
            self.wrong.append(name)
            return "wrong"
        if count == 0:
            return "refused"
        self.remade.add(name)
        return "remade"

    def run_all(self, operators: list[Any], dtype: torch.dtype, mode: str, most: int) -> None:
        for operator in operators:
            name = operator.name
            if operator.name in _LEFT_OUT or dtype not in operator.supported_dtypes(self.device):
                continue
            if mode == "out" and not operator.supports_out:
                continue
            for number, sample in enumerate(self._samples(operator, dtype, mode)):
                if number >= most:
                    break
                autocast = torch.autocast(
                    self.device, torch.bfloat16, enabled=mode == "autocast"
                )
                try:
                    with autocast, torch.no_grad():
                        is_out = mode == "out"
                        function = _into_arguments(operator.op, sample) if is_out else operator.op
                        outcome = self.run(name, function, sample)
                except Exception as error:  # the operator's own errors are no matter here
                    outcome = "fails"
                    if "SmartSwap" in str(error):
                        self.wrong.append(f"{name}: {error}")
                self.samples[outcome] += 1

    def _samples(self, operator: Any, dtype: torch.dtype, mode: str) -> Iterator[Any]:
        with contextlib.suppress(Exception):
            for sample in operator.sample_inputs(self.device, dtype, requires_grad=False):
                sample = sample.transform(
                    lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf
                )
                yield sample.noncontiguous() if mode == "noncontiguous" else sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device")
    parser.add_argument("dtypes", nargs="+")
    parser.add_argument("--samples", type=int, default=4, help="of each operator")
    parser.add_argument("--only", help="operators with this in their names")
    wishes = parser.parse_args()
    warnings.simplefilter("ignore")
    smartswap.enable("4GiB", device=wishes.device, min_block="1", manual_steps=True)
    from torch.testing._internal.common_methods_invocations import op_db

    adapter = _native.adapter()
    # All that runs here counts as a step that is recorded.
    adapter.set_aside(2)
    device = "cpu" if wishes.device == "host" else "cuda"
    operators = [one for one in op_db if not wishes.only or wishes.only in one.name]
    judge = Judge(device)
    for dtype in wishes.dtypes:
        for mode in _MODES:
            judge.run_all(operators, getattr(torch, dtype), mode, wishes.samples)
            print(dtype, mode, dict(judge.samples), file=sys.stderr)
    recipes = adapter.recipes()
    found = {
        "operators": len({operator.name for operator in operators}),
        "remade": len(judge.remade),
        "samples": judge.samples,
        "wrong": judge.wrong,
        "unsure": recipes["unsure_ops"],
        "refused": recipes["refused"],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
