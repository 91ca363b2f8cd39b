"""Extension modules that are not operators, and faults of those that nobody could see."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from processes import START, python, run
from smartswap import faults
from torch.utils import cpp_extension

SOURCE = Path(__file__).parent / "extension" / "by_address.cpp"
# Away while the extension gets them: eight tensors of which five fit.
AWAY = """
smartswap.enable("24MiB", device="host", min_block="1MiB")
tensors = [values(seed) for seed in range(8)]
smartswap.step()
assert smartswap.stats()["swapped_out_bytes"] >= 8 * MIB
"""


@pytest.fixture(scope="session")
def extension(tmp_path_factory):
    """The folder with the built extension."""
    folder = tmp_path_factory.mktemp("extension")
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths()
    abi = int(torch.compiled_with_cxx11_abi())
    subprocess.run(
        [
            *[os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-w"],
            *[f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *(f"-I{path}" for path in includes)],
            *[str(SOURCE), "-o", f"{folder}/by_address{sysconfig.get_config_var('EXT_SUFFIX')}"],
            *(f"-L{path}" for path in libraries),
            *["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"],
        ],
        check=True,
    )
    return folder


def run_with(extension, tmp_path, text):
    return run(tmp_path, f"sys.path.insert(0, {str(extension)!r})\n{AWAY}\n{text}")


def test_functions_and_methods_of_extensions_are_operators(extension, tmp_path):
    text = """
import by_address
made = by_address.doubled(tensors[0])
assert torch.equal(made, 2 * values(0))
by_address.scale_all([[tensors[1], tensors[2]], [tensors[3]]], 3.0)
for seed in (1, 2, 3):
    assert torch.equal(tensors[seed], 3 * values(seed))
class Layer:
    weight = None
    def __init__(self, weight):
        self.weight = weight
expected = values(4).double().sum().item()
assert abs(by_address.inner.sum_of(Layer(tensors[4])) - expected) < 1e-3
by_address.Adder(1.0).add(tensors[5])
assert torch.equal(tensors[5], values(5) + 1)
assert by_address.Adder.first(tensors[6]) == values(6)[0].item()
assert smartswap.stats()["held"] == []
assert smartswap.stats()["reserved_bytes"]["peak"] <= 24 * MIB
del tensors, made
smartswap.disable()
print(by_address.doubled(torch.ones(1)).item(), hasattr(by_address.doubled, "__wrapped__"))
"""
    assert run_with(extension, tmp_path, text) == "2.0 False\n"


def test_an_extension_that_is_loaded_by_its_path_is_seen_too(extension, tmp_path):
    text = f"""
import glob, importlib.util
[path] = glob.glob({str(extension)!r} + "/by_address*.so")
spec = importlib.util.spec_from_file_location("by_address", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(torch.equal(module.doubled(tensors[0]), 2 * values(0)))
"""
    assert run_with(extension, tmp_path, text) == "True\n"


def test_an_access_that_nobody_saw_is_told_with_the_line_that_made_it(tmp_path):
    script = tmp_path / "script.py"
    text = """
address = torch._C._TensorBase.data_ptr(tensors[0])
def touch_it():
    return (ctypes.c_float * MIB).from_address(address)[5]
touch_it()
"""
    script.write_text(START + AWAY + text)
    done = python(script, cwd=tmp_path)
    assert done.returncode == -11
    assert "something used byte 20 of a tensor of 4.0 MiB outside PyTorch's" in done.stderr
    assert "smartswap.adapt_mem_func_wrapper" in done.stderr
    assert "in touch_it" in done.stderr


def test_faults_of_others_end_as_ever(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(START + AWAY + "ctypes.string_at(16)\n")
    done = python(script, cwd=tmp_path)
    assert done.returncode == -11 and "SmartSwap" not in done.stderr


def test_only_errors_of_the_device_get_advice():
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert "data_ptr()" in faults.advice(error)
    for other in (RuntimeError("shape mismatch"), ValueError("illegal memory access")):
        assert faults.advice(other) is None


def test_an_error_that_ends_the_script_is_followed_by_advice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(START + AWAY + 'raise RuntimeError("an illegal memory access")\n')
    done = python(script, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.index("Traceback") < done.stderr.index("CUDA_LAUNCH_BLOCKING=1")
