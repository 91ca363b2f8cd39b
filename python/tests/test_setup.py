"""What cannot be built says so before a compiler does."""

import subprocess
import sys
from pathlib import Path

SETUP = Path(__file__).parents[1] / "setup.py"


def test_an_old_pytorch_with_cuda_is_refused():
    pretend = (
        "import runpy, sys, torch\n"
        "torch.__version__, torch.version.cuda = '2.9.1', '12.8'\n"
        "sys.argv = ['setup.py', '--version']\n"
        f"runpy.run_path({str(SETUP)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "PyTorch 2.9.1 is too old: for CUDA SmartSwap needs 2.11 or later; "
        "pip install 'torch>=2.11'\n"
    )
