// The engine's counters in torch_npu's own shape.
#pragma once

#ifdef SMARTSWAP_NPU

#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>

#include "engine.h"

namespace smartswap::npu {

inline smartswap_stats engine_stats() {
  smartswap_stats now = {};
  now.struct_size = sizeof(now);
  check(smartswap_get_stats(&now));
  return now;
}

inline c10_npu::NPUCachingAllocator::Stat stat_of(const smartswap_bytes& bytes) {
  c10_npu::NPUCachingAllocator::Stat stat;
  stat.current = static_cast<int64_t>(bytes.current);
  stat.peak = static_cast<int64_t>(bytes.peak);
  stat.allocated = stat.peak;
  stat.freed = stat.allocated - stat.current;
  return stat;
}

// Large and small blocks are not told apart: all count as large.
inline c10_npu::NPUCachingAllocator::DeviceStats device_stats(int64_t out_of_memory_count) {
  namespace caching = c10_npu::NPUCachingAllocator;
  const auto now = engine_stats();
  caching::DeviceStats result;
  const auto aggregate = static_cast<size_t>(caching::StatType::AGGREGATE);
  const auto large = static_cast<size_t>(caching::StatType::LARGE_POOL);
  for (const size_t kind : {aggregate, large}) {
    // What live tensors hold, wherever their bytes are now.
    result.allocated_bytes[kind] = stat_of(now.allocated);
    result.requested_bytes[kind] = stat_of(now.requested);
    result.active_bytes[kind] = stat_of(now.active);
    result.reserved_bytes[kind] = stat_of(now.reserved);
    result.allocation[kind].allocated = static_cast<int64_t>(now.allocations);
  }
  result.num_alloc_retries = static_cast<int64_t>(now.rescues);
  result.num_ooms = out_of_memory_count;
  return result;
}

}  // namespace smartswap::npu

#endif  // SMARTSWAP_NPU
