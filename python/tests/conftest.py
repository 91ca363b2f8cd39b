"""Lets the tests run on the source tree where the package is not installed, and in one worker
where they share what takes long to make."""

import importlib.util
import sys
from pathlib import Path

import pytest

# Fixtures of a module or of all: a training to compare with, or operators to compile.
SHARED = {"plain", "operator", "extension", "build_folder"}

if importlib.util.find_spec("smartswap") is None:
    sys.path.insert(0, str(Path(__file__).parents[1]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with the same one of these fixtures go to one worker (`--dist loadgroup`)."""
    for item in items:
        for name in SHARED.intersection(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {name}"))
