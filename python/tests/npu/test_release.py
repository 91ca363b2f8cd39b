"""The adapter implements what the interface of the torch_npu at hand has, whatever its version."""

import subprocess
from pathlib import Path

import pytest
import torch

CSRC = Path(__file__).parents[2] / "csrc"
ENGINE = CSRC.parents[1] / "crates" / "bridge" / "include"
HEADER = "torch_npu/csrc/core/npu/NPUCachingAllocator.h"
# As in 2.11.0; post releases have functions besides.
INTERFACE = """
#pragma once
#include <functional>
#include <utility>
namespace c10_npu {
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;
namespace NPUCachingAllocator {
struct DeviceStats {};
using AllocatorTraceTracker = std::function<void(int)>;
struct NPUAllocator {
  virtual void emptyCache(bool) {}
  virtual DeviceStats getDeviceStats(NUMBER) { return {}; }
  FUNCTIONS
};
}}
"""
POOLS = "virtual void emptyCache(MempoolId_t) = 0;"
TRACES = "virtual void attachAllocatorTraceTracker(AllocatorTraceTracker) = 0;"
# It has objects only if nothing of the interface is left out.
USE = """
#include "npu_release.h"
struct Allocator final : smartswap::npu::Interface {};
static_assert(std::is_same_v<smartswap::npu::StatsIndex, NUMBER>);
smartswap::npu::caching::NPUAllocator* made() { return new Allocator(); }
"""


def compiled(folder: Path, functions: str, number: str) -> str:
    """What the compiler says of an interface with these functions."""
    header = folder / HEADER
    header.parent.mkdir(parents=True)
    header.write_text(INTERFACE.replace("FUNCTIONS", functions).replace("NUMBER", number))
    source = folder / "use.cpp"
    source.write_text(USE.replace("NUMBER", number))
    torch_headers = Path(torch.__file__).parent / "include"
    folders = [f"-I{each}" for each in (folder, CSRC, ENGINE, torch_headers)]
    command = ["g++", "-std=c++17", "-fsyntax-only", *folders, str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stderr


@pytest.mark.parametrize(
    ("functions", "number"),
    [("", "int"), (POOLS, "int"), (TRACES, "int"), (POOLS + TRACES, "signed char")],
)
def test_what_a_release_has_is_implemented(tmp_path, functions, number):
    assert compiled(tmp_path, functions, number) == ""


def test_what_nobody_knows_is_noticed(tmp_path):
    assert "unheardOf" in compiled(tmp_path, "virtual void unheardOf() = 0;", "int")
