"""What script_order.py prints on a device with streams, for the tests of each of them."""

# How the second stream learns of the first one's work.
KNOWN = ("waits", "records", "synchronizes")


def assert_found(failed):
    """A use that nothing orders fails, and names its operator."""
    assert "aten::add_" in failed["error"] and "is not ordered after" in failed["error"], failed
    assert failed["order"]["violations"] == 1, failed


def assert_known(passed):
    """What PyTorch orders by itself is known, and was looked at."""
    assert passed["error"] == "", passed
    order = passed["order"]
    assert order["violations"] == 0 and order["accesses"] >= 2 and order["foreign_calls"] > 0, order
