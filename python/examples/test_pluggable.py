"""PyTorch's pluggable allocator on the engine's symbols: a cap, its error, and clear refusals."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("smartswap")

ADAPTER = importlib.util.find_spec("smartswap._adapter")
if ADAPTER is None:
    pytest.skip("the package is not built: pip install ./python", allow_module_level=True)

# Each in a process of its own: a process has one allocator, and sets it before the first tensor.
SETUP = """
import ctypes, sys
import torch
import smartswap

class Settings(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32), ("device", ctypes.c_char_p),
        ("memory_bytes", ctypes.c_uint64), ("host_memory_bytes", ctypes.c_uint64),
        ("min_block_bytes", ctypes.c_uint64), ("compute_stream", ctypes.c_uint64),
        ("prefer", ctypes.c_char_p), ("strategy", ctypes.c_char_p),
        ("config_file", ctypes.c_char_p), ("record_file", ctypes.c_char_p),
    ]

engine = ctypes.CDLL(smartswap.library_path() + "/libsmartswap.so", mode=ctypes.RTLD_GLOBAL)
settings = Settings()
engine.smartswap_default_settings(ctypes.byref(settings))
settings.device = b"cuda:0"
settings.memory_bytes = 256 << 20
torch.cuda.init()
assert engine.smartswap_open(ctypes.byref(settings)) == 0
adapter = ctypes.CDLL(sys.argv[1])
pluggable = torch.cuda.memory.CUDAPluggableAllocator(
    sys.argv[1], "smartswap_cuda_malloc", "smartswap_cuda_free"
)

def address(name):
    return ctypes.cast(getattr(adapter, "smartswap_cuda_" + name), ctypes.c_void_p).value

a = pluggable.allocator()
a.set_init_fn(address("init"))
a.set_reset_fn(address("empty_cache"))
a.set_memory_fraction_fn(address("memory_fraction"))
a.set_base_alloc_fn(address("base_alloc"))
a.set_record_stream_fn(address("record_stream"))
a.set_begin_allocate_to_pool(address("begin_allocate_to_pool"))
a.set_end_allocate_to_pool_fn(address("end_allocate_to_pool"))
a.set_release_pool(address("release_pool"))
torch.cuda.memory.change_current_allocator(pluggable)
"""

WITHIN_THE_CAP = """
kept = [torch.full((16 << 20,), float(i), device="cuda") for i in range(2)]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    doubled = kept[1] * 2
doubled.record_stream(torch.cuda.current_stream())
kept[1].record_stream(side)
side.synchronize()
assert float(doubled[5]) == 2.0 and float(kept[1].sum()) == 1.0 * (16 << 20)
del kept, doubled
torch.cuda.empty_cache()
print("fine")
"""

BEYOND_THE_CAP = """
try:
    kept = [torch.empty(16 << 20, device="cuda") for _ in range(5)]
except torch.OutOfMemoryError as error:
    assert "SmartSwap: out of device memory" in str(error), error
    print("fine")
"""

GRAPHS = """
x = torch.ones(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        y = x * 2
except Exception as error:
    assert "need memory that stays" in str(error), error
    print("fine", flush=True)
# The capture was begun and not ended: nothing more can be done in this process.
import os
os._exit(0)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("body", [WITHIN_THE_CAP, BEYOND_THE_CAP, GRAPHS])
def test_pytorch_runs_on_the_symbols(body: str) -> None:
    """Memory within the cap, the error beyond it, and no graphs."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", SETUP + body, ADAPTER.origin],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
