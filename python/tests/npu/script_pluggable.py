"""Runs torch_npu on an allocator of the engine's functions, found by their names.

That is how the original put its allocator there. An allocator alone moves nothing.
"""

import ctypes
import importlib.util

import smartswap
import torch
import torch_npu
from standin import ledger

CAP_BYTES = 256 << 20
# One tensor is 64 MiB.
COUNT = 16 << 20
SETTERS = {
    "set_init_fn": "init",
    "set_reset_fn": "empty_cache",
    "set_memory_fraction_fn": "memory_fraction",
    "set_base_alloc_fn": "base_alloc",
    "set_record_stream_fn": "record_stream",
    "set_erase_stream_fn": "erase_stream",
    "set_get_device_stats_fn": "get_device_stats",
    "set_reset_peak_status_fn": "reset_peak_stats",
    "set_begin_allocate_to_pool": "begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "end_allocate_to_pool",
    "set_release_pool": "release_pool",
}


class Settings(ctypes.Structure):
    """`smartswap_settings`."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_char_p),
        ("memory_bytes", ctypes.c_uint64),
        ("host_memory_bytes", ctypes.c_uint64),
        ("min_block_bytes", ctypes.c_uint64),
        ("compute_stream", ctypes.c_uint64),
        ("prefer", ctypes.c_char_p),
        ("strategy", ctypes.c_char_p),
        ("config_file", ctypes.c_char_p),
        ("record_file", ctypes.c_char_p),
    ]


def open_engine() -> None:
    """Before the allocator is made: torch_npu asks for the thread's device then."""
    library = f"{smartswap.library_path()}/libsmartswap.so"
    engine = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    settings = Settings()
    engine.smartswap_default_settings(ctypes.byref(settings))
    settings.device = b"npu:0"
    settings.memory_bytes = CAP_BYTES
    assert engine.smartswap_open(ctypes.byref(settings)) == 0


def install() -> None:
    """Makes the engine's functions torch_npu's allocator."""
    path = importlib.util.find_spec("smartswap._adapter").origin
    adapter = ctypes.CDLL(path)
    pluggable = torch_npu.npu.memory.NPUPluggableAllocator(
        path, "smartswap_npu_malloc", "smartswap_npu_free"
    )
    allocator = pluggable.allocator()
    for setter, name in SETTERS.items():
        function = getattr(adapter, f"smartswap_npu_{name}")
        getattr(allocator, setter)(ctypes.cast(function, ctypes.c_void_p).value)
    torch_npu.npu.memory.change_current_allocator(pluggable)


open_engine()
install()
kept = [torch.full((COUNT,), float(index), device="npu") for index in range(2)]
side = torch.npu.Stream()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    doubled = kept[1] * 2
doubled.record_stream(torch.npu.current_stream())
kept[1].record_stream(side)
side.synchronize()
assert float(doubled[5]) == 2.0
assert float(kept[1].sum()) == COUNT
assert 3 * 4 * COUNT <= torch.npu.max_memory_allocated() <= CAP_BYTES
try:
    more = [torch.empty(COUNT, device="npu") for _ in range(2)]
except torch.OutOfMemoryError as error:
    assert "SmartSwap: out of device memory" in str(error), error
else:
    raise AssertionError("five tensors do not fit")
assert torch.npu.memory_stats()["num_ooms"] == 1
assert ledger()["chunk_bytes_peak"] <= CAP_BYTES
del kept, doubled
torch.npu.empty_cache()
torch.npu.reset_peak_memory_stats()
assert torch.npu.max_memory_allocated() == ledger()["chunk_bytes"] == 0
