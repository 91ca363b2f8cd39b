"""What autograd offers works under a cap, to the same bits."""

import pytest


def test_tied_weights(compare):
    compare("tied", 5)


def test_in_place_operators(compare):
    compare("in_place", 9)


def test_views(compare):
    compare("views", 9)


def test_autograd_functions(compare):
    compare("functions", 10)


def test_double_backward(compare):
    compare("double_backward", 5)


def test_gradient_accumulation(compare):
    compare("accumulation", 10)


def test_gradient_accumulation_of_batches_with_lengths_of_their_own(compare):
    run = compare("padded_accumulation", 10, settles=False)
    assert run.result["stats"]["stage"] == "Stable"
    (family,) = run.result["families"]
    assert len(family["recorded_probe_bytes"]) >= 3
    # Some batches are longer than all that were recorded: their steps make calls and miss.
    calls = [sum(stats["last_memory_calls"].values()) for stats in run.result["course"]]
    assert min(calls[-20:]) <= 2, calls


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(compare, reentrant):
    compare("gpt", 9, arguments={"recompute": reentrant, "dropout": 0.1})


def test_mixed_precision(compare):
    compare("autocast", 10)


def test_saved_tensor_hooks(compare):
    compare("saved_tensor_hooks", 12)
