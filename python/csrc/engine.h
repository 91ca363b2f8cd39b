// The engine's C interface as the adapter uses it: codes become exceptions, and forked children
// leave the engine alone.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "smartswap.h"

namespace smartswap {

// The device whose memory the engine owns. Set while it is open.
struct Attached {
  // Whether tensors of this device go through the engine now.
  std::atomic<bool> active{false};
  c10::DeviceType type = c10::DeviceType::CPU;
  c10::DeviceIndex index = 0;
  // Allocations of at least so many bytes can leave it.
  uint64_t least_bytes = 0;
};
Attached& attached();

// Whether this process is a forked child of the one that opened the engine. The engine's threads
// are not in it, so it must not be called there.
bool in_forked_child();
// Notes forks from now on, and gives the children copies of the engine's CPU tensors.
void watch_forks();

// Throws the exception that fits a failed call: c10::OutOfMemoryError, ValueError or Error.
[[noreturn]] void raise(int code, const std::string& text);
// Throws if the call failed.
void check(int code);

// Why an operator must not run.
struct Failure {
  int code;
  std::string text;
};

// The start of the block around `memory`, and its bytes if they are asked for; null if the memory
// is not the engine's.
void* base_of(const void* memory, size_t* size_bytes = nullptr);

// The engine's counters. Throws if none is open.
smartswap_stats engine_stats();

// The stream on which operators of the calling thread run now.
uint64_t current_stream();

}  // namespace smartswap
