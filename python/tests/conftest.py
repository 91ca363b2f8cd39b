"""Lets the tests run on the source tree where the package is not installed."""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("smartswap") is None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
