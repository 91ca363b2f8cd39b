"""Optimizers, evaluations, changed shapes, exceptions, files: to the same bits under a cap."""

import pytest

OPTIMIZERS = [
    ("SGD", {"foreach": True, "momentum": 0.9}),
    ("SGD", {"fused": True, "momentum": 0.9}),
    ("AdamW", {"foreach": True}),
    ("AdamW", {"fused": True, "amsgrad": True}),
    ("AdamW", {"foreach": False, "norm": 0.1}),
]


@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_optimizer(compare, name, settings):
    compare("optimized", 10, arguments={"name": name, **settings})


def test_two_optimizers_in_a_step(compare):
    compare("two_optimizers", 10)


def test_closure(compare):
    compare("lbfgs", 5, settles=False)


def test_evaluation_between_steps(compare):
    run = compare("evaluated", 11)
    stages = [stats["stage"] for stats in run.result["course"]]
    # The plan stays, once it is found.
    assert "WarmUp" not in stages[stages.index("Stable") :]


def test_changed_batch_size(compare):
    run = compare("batch_changes", 10, settles=False)
    stages = [stats["stage"] for stats in run.result["course"]]
    # A new shape is recorded and planned for; the one from before is known at once. How long the
    # search goes on depends on how steady steps are.
    assert stages[8] != "WarmUp"
    assert "WarmUp" in stages[9:12]
    assert "WarmUp" not in stages[19:24]


@pytest.mark.parametrize("what", ["RuntimeError", "KeyboardInterrupt"])
def test_exceptions_in_a_step(compare, what):
    compare("thrown", 11, settles=False, arguments={"what": what})


def test_saved_and_loaded(compare):
    compare("saved", 12, settles=False)


def test_a_model_that_outgrows_the_cap(compare):
    run = compare("grows", 20, settles=False)
    course = run.result["course"]
    assert course[12]["swapped_out_bytes"] == 0, "it did not fit at first"
    assert course[12]["stage"] == "Stable"


def test_batches_from_another_thread(compare):
    compare("fetched_ahead", 12, settles=False)
