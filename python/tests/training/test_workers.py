"""Data that other processes load."""

import pytest


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers(compare, start):
    compare("loaded", 12, settles=False, arguments={"start": start})


def test_forked_workers_read_tensors_from_before(compare):
    compare("loaded", 12, settles=False, arguments={"start": "fork", "kept": True})
