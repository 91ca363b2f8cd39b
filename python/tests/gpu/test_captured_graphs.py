"""CUDA graphs under a cap, on a GPU: `pytest python/tests/gpu/test_captured_graphs.py`."""

import json
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

from test_gpu import run, run_python  # noqa: E402

SCRIPT = Path(__file__).parent / "script_graphs.py"


def assert_same_under(share, tmp_path, what, *flags):
    """The script prints the same with a share of the memory that it reserves in plain PyTorch."""
    arguments = [str(SCRIPT), what, str(tmp_path / "trace.json")]
    plain, plain_bytes = run(arguments)
    cap_bytes = int(plain_bytes * share)
    cap = ["-m", "smartswap", "--memory", str(cap_bytes), "--min-block", "2MiB", *flags]
    capped, capped_bytes = run([*cap, *arguments])
    assert capped == plain
    assert len(plain) > 5
    assert 0 < capped_bytes <= cap_bytes


@pytest.mark.parametrize(
    ("what", "share"), [("parts", 0.6), ("copies", 0.6), ("kept", 0.6), ("whole", 0.75)]
)
def test_graphs_compute_the_same_under_a_cap(tmp_path, what, share):
    assert_same_under(share, tmp_path, what)


@pytest.mark.parametrize("wait", ["off", "on"])
def test_graphed_callables_train_the_same_and_their_replays_are_planned_for(tmp_path, wait):
    assert_same_under(0.6, tmp_path, "callables", "--defer-updates", wait)
    trace = json.loads((tmp_path / "trace.json").read_text())
    names = [op["name"] for op in trace["ops"]]
    # Two callables, forward and backward.
    assert names.count("cuda_graph::replay") == 4, names


def test_reduce_overhead_trains_the_same(tmp_path):
    assert_same_under(0.7, tmp_path, "compiled")


def test_a_graph_that_cannot_fit_says_so():
    done = run_python(["-m", "smartswap", "--memory", "320MiB", str(SCRIPT), "too_large"])
    assert done.stdout.splitlines()[:2] == ["True True", "True"]
