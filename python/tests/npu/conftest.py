"""Runs scripts with the real torch_npu over the stand-in of Ascend's library.

torch_npu is in a folder of its own, beside this package built for it, so that no other test
imports it: `cargo xtask test` builds both and names them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Where torch_npu and the package that was built for it are, for each release, and the stand-in.
PACKAGES = [each for each in os.environ.get("SMARTSWAP_NPU_PACKAGES", "").split(":") if each]
STANDIN = os.environ.get("SMARTSWAP_NPU_STANDIN")
# What torch_npu links with or opens. One library is all of them: none but the first has a
# function that it needs.
LIBRARIES = ("ascendcl", "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel")
TIMEOUT_S = 300


class Npu:
    """Runs scripts as a user with an Ascend machine would."""

    def __init__(self, libraries: Path, packages: str) -> None:
        self._environment = os.environ | {
            "ACL_STANDIN_NAME": "Ascend910B4",
            "ACL_STANDIN_RESET": "frees",
            "LD_LIBRARY_PATH": str(libraries),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{packages}:{HERE}",
            "TASK_QUEUE_ENABLE": "0",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }

    def run(self, *words) -> subprocess.CompletedProcess[str]:
        """Runs Python with these words behind it, which must end well and quietly."""
        done = subprocess.run(
            [sys.executable, *map(str, words)], capture_output=True, text=True,
            timeout=TIMEOUT_S, env=self._environment, cwd=HERE,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for sign in ("npu_sys_ctrl", "after aclFinalize"):
            assert sign not in done.stderr, done.stderr[-4000:]
        return done

    def json(self, *words):
        """What a script printed last, as JSON."""
        return json.loads(self.run(*words).stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def libraries(tmp_path_factory) -> Path:
    """The folder of the libraries that torch_npu wants, if it is there."""
    if not PACKAGES or not STANDIN:
        pytest.skip("needs torch_npu and the stand-in: cargo xtask test")
    folder = tmp_path_factory.mktemp("libraries")
    for name in LIBRARIES:
        (folder / f"lib{name}.so").symlink_to(STANDIN)
    return folder


@pytest.fixture(scope="session")
def npu(libraries) -> Npu:
    """The device."""
    return Npu(libraries, PACKAGES[0])


@pytest.fixture(scope="session")
def other_npu(libraries) -> Npu:
    """The device under another release of torch_npu."""
    if len(PACKAGES) < 2:
        pytest.skip("needs another torch_npu: python/requirements-npu-post.txt")
    return Npu(libraries, PACKAGES[1])
