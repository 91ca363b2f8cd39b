"""The check of order on a device with streams: a missing wait fails in every run."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS))

from order_cases import KNOWN, assert_found, assert_known  # noqa: E402


@pytest.fixture
def told(npu, tmp_path):
    """What came of a use on another stream than the one that made the tensor."""

    def run(how, checks="true"):
        config = tmp_path / "order.toml"
        config.write_text(f"check_order = {checks}\n")
        return npu.json(TESTS / "script_order.py", "npu:0", config, how)

    return run


def test_a_use_that_nothing_orders_fails_with_its_operator(told):
    assert_found(told("forgets"))


@pytest.mark.parametrize("how", KNOWN)
def test_what_pytorch_orders_by_itself_is_known(told, how):
    assert_known(told(how))


def test_without_the_check_nobody_looks(told):
    assert told("forgets", checks="false") == {"error": "", "order": None}
