// What the allocators of the devices have in common, whatever framework they are written for.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "deferred.h"
#include "engine.h"
#include "graphs.h"
#include "observer.h"
#include "seals.h"
#include "shortage.h"

namespace smartswap {

// A stream as the engine knows it.
template <class Stream>
uint64_t handle_of(Stream* stream) {
  return reinterpret_cast<uint64_t>(stream);
}

// Whether the engine owns the memory of this device now.
inline bool is_ours(int device) {
  return device == attached().index && attached().active.load(std::memory_order_relaxed) &&
      !in_forked_child();
}

inline bool is_ours(const void* memory) {
  return memory != nullptr && smartswap_find(memory, nullptr, nullptr) == SMARTSWAP_OK;
}

[[noreturn]] inline void refuse(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "SmartSwap: ", what);
}

constexpr char kNoSharing[] =
    "memory that moves cannot be shared between processes: make the tensor in `with "
    "smartswap.outside():`, or send its .cpu()";

inline void warn_of_history() {
  TORCH_WARN_ONCE(
      "SmartSwap: memory history has none of its allocations; snapshots show what lives, and "
      "smartswap.explain() says what is where");
}

inline void warn_of_fraction(double fraction) {
  TORCH_WARN_ONCE(
      "SmartSwap: the cap stays what smartswap was enabled with; a memory fraction of ", fraction,
      " is not taken");
}

// Gives unused memory of the engine back to the driver, if it is open.
inline void trim() {
  if (attached().active) {
    check(smartswap_trim());
  }
}

// Runs `copy` as an op that reads `source` and may write any part of `target`.
template <class Copy>
void copy_as_op(void* target, const void* source, Copy copy) {
  if (graphs::captures()) {
    graphs::note({{source, SMARTSWAP_READ}, {target, SMARTSWAP_READ_WRITE}});
    return copy();
  }
  deferred::run_before(base_of(source));
  deferred::run_before(base_of(target));
  check(smartswap_begin("smartswap::copy_data", current_stream(), SMARTSWAP_STEP));
  int code = smartswap_touch(source, SMARTSWAP_READ);
  if (code == SMARTSWAP_OK) {
    code = smartswap_touch(target, SMARTSWAP_UNKNOWN);
  }
  if (code != SMARTSWAP_OK) {
    const std::string text = smartswap_last_error();
    smartswap_end();
    raise(code, text);
  }
  copy();
  seals::forget(target);
  check(smartswap_end());
}

// Adds all that lives in the engine to a framework's snapshot, each allocation as a segment of its
// own. What is not on the device now is not active.
template <class SegmentInfo>
void list_segments(std::vector<SegmentInfo>& segments) {
  const auto add = [](void* list, void* start, uint64_t size_bytes, int is_resident) {
    SegmentInfo segment;
    segment.device = attached().index;
    segment.address = reinterpret_cast<size_t>(start);
    segment.total_size = segment.requested_size = segment.allocated_size = size_bytes;
    segment.active_size = is_resident != 0 ? size_bytes : 0;
    segment.is_large = smartswap_moves(start) != 0;
    auto& block = segment.blocks.emplace_back();
    block.size = block.requested_size = size_bytes;
    block.allocated = true;
    block.active = is_resident != 0;
    static_cast<std::vector<SegmentInfo>*>(list)->push_back(std::move(segment));
  };
  check(smartswap_list(add, &segments));
}

// The engine's counters in a framework's own shape, whose places for all blocks and for large
// ones are given. Large and small blocks are not told apart: all count as large.
template <class DeviceStats>
DeviceStats device_stats(size_t aggregate, size_t large, int64_t out_of_memory_count) {
  const auto now = engine_stats();
  DeviceStats result;
  const auto fill = [](auto& stat, const smartswap_bytes& bytes) {
    stat.current = static_cast<int64_t>(bytes.current);
    stat.peak = static_cast<int64_t>(bytes.peak);
    stat.allocated = stat.peak;
    stat.freed = stat.allocated - stat.current;
  };
  for (const size_t kind : {aggregate, large}) {
    // What live tensors hold, wherever their bytes are now.
    fill(result.allocated_bytes[kind], now.allocated);
    fill(result.requested_bytes[kind], now.requested);
    fill(result.active_bytes[kind], now.active);
    fill(result.reserved_bytes[kind], now.reserved);
    result.allocation[kind].allocated = static_cast<int64_t>(now.allocations);
  }
  result.num_alloc_retries = static_cast<int64_t>(now.rescues);
  result.num_ooms = out_of_memory_count;
  return result;
}

// What a framework's own allocator has taken from the driver, and what of it no tensor needs.
struct Taken {
  uint64_t held_bytes;
  uint64_t idle_bytes;
};

// From its own counters, of which the place for all blocks is given.
template <class DeviceStats>
Taken taken(const DeviceStats& stats, size_t aggregate) {
  const int64_t held = stats.reserved_bytes[aggregate].current;
  const int64_t used = stats.active_bytes[aggregate].current;
  // Beside tensors in the same piece of memory.
  const int64_t split = stats.inactive_split_bytes[aggregate].current;
  const int64_t idle = std::max(held - used - split, int64_t{0});
  return {static_cast<uint64_t>(held), static_cast<uint64_t>(idle)};
}

// Who is told when memory runs out, and how often it did.
template <class Observer>
class OutOfMemory {
 public:
  void attach(Observer observer) {
    const std::lock_guard<std::mutex> guard(lock_);
    observers_.push_back(std::move(observer));
  }

  int64_t count() {
    const std::lock_guard<std::mutex> guard(lock_);
    return count_;
  }

  // Tells the observers and throws, with the engine's own text.
  [[noreturn]] void fail(size_t size_bytes, std::pair<size_t, size_t> (*free_and_total)()) {
    const std::string text = smartswap_last_error();
    shortage::note(size_bytes);
    std::vector<Observer> observers;
    {
      const std::lock_guard<std::mutex> guard(lock_);
      ++count_;
      observers = observers_;
    }
    const auto [free_bytes, total_bytes] = free_and_total();
    for (const auto& observer : observers) {
      observer(attached().index, size_bytes, total_bytes, free_bytes);
    }
    raise(SMARTSWAP_OUT_OF_MEMORY, text);
  }

 private:
  std::mutex lock_;
  std::vector<Observer> observers_;
  int64_t count_ = 0;
};

}  // namespace smartswap
