// What torch_npu.npu.memory.NPUPluggableAllocator looks for, by plain names. Unlike those of
// libsmartswap.so they may throw, so that Python sees an OutOfMemoryError with the engine's text.
//
// They have the types of the torch_npu that they were compiled against.
#ifdef SMARTSWAP_NPU

#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <atomic>
#include <functional>

#include "npu_release.h"
#include "pluggable.h"

namespace pluggable = smartswap::pluggable;
using smartswap::handle_of;

namespace {

namespace caching = c10_npu::NPUCachingAllocator;
using DeviceNumber = smartswap::npu::StatsIndex;

std::atomic<int64_t> out_of_memory_count{0};

constexpr char kGraphs[] =
    "SmartSwap: NPU graphs and memory pools need memory that stays: train without them";

}  // namespace

SMARTSWAP_EXPORT void* smartswap_npu_malloc(size_t size_bytes, int, aclrtStream stream) {
  try {
    return pluggable::allocate(size_bytes, handle_of(stream));
  } catch (const c10::OutOfMemoryError&) {
    out_of_memory_count.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

SMARTSWAP_EXPORT void smartswap_npu_free(void* memory, size_t, int, aclrtStream) {
  pluggable::release(memory);
}

SMARTSWAP_EXPORT void smartswap_npu_init(int) {
  pluggable::require_engine();
}

SMARTSWAP_EXPORT void smartswap_npu_empty_cache(bool) {
  smartswap::check(smartswap_trim());
}

SMARTSWAP_EXPORT void smartswap_npu_memory_fraction(double fraction, int) {
  smartswap::warn_of_fraction(fraction);
}

SMARTSWAP_EXPORT void* smartswap_npu_base_alloc(void* memory, size_t* size_bytes) {
  return pluggable::require_base(memory, size_bytes);
}

SMARTSWAP_EXPORT void smartswap_npu_record_stream(void* memory, c10_npu::NPUStream stream) {
  pluggable::use_on(memory, handle_of(stream.stream()));
}

// The memory stays ordered behind the stream until it is freed, which is more than is asked.
SMARTSWAP_EXPORT void smartswap_npu_erase_stream(void* memory, c10_npu::NPUStream) {
  if (memory != nullptr) {
    smartswap::check(smartswap_find(memory, nullptr, nullptr));
  }
}

// A C++ type in a function of a plain name: both sides are C++.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wreturn-type-c-linkage"
SMARTSWAP_EXPORT caching::DeviceStats smartswap_npu_get_device_stats(DeviceNumber) {
  return smartswap::device_stats<caching::DeviceStats>(
      static_cast<size_t>(caching::StatType::AGGREGATE),
      static_cast<size_t>(caching::StatType::LARGE_POOL),
      out_of_memory_count.load(std::memory_order_relaxed));
}
#pragma GCC diagnostic pop

SMARTSWAP_EXPORT void smartswap_npu_reset_peak_stats(DeviceNumber) {
  smartswap::check(smartswap_reset_peaks());
}

SMARTSWAP_EXPORT void smartswap_npu_begin_allocate_to_pool(
    int, c10_npu::MempoolId_t, std::function<bool(aclrtStream)>) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kGraphs);
}

SMARTSWAP_EXPORT void smartswap_npu_end_allocate_to_pool(int, c10_npu::MempoolId_t) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kGraphs);
}

// No pool was ever begun, so there is none to release.
SMARTSWAP_EXPORT void smartswap_npu_release_pool(int, c10_npu::MempoolId_t) {}

// The setters of the framework's class take functions of these types.
static_assert(std::is_convertible_v<
              decltype(&smartswap_npu_record_stream),
              std::function<void(void*, c10_npu::NPUStream)>>);
static_assert(std::is_convertible_v<
              decltype(&smartswap_npu_get_device_stats),
              std::function<caching::DeviceStats(DeviceNumber)>>);
static_assert(std::is_convertible_v<
              decltype(&smartswap_npu_begin_allocate_to_pool),
              std::function<void(int, c10_npu::MempoolId_t, std::function<bool(aclrtStream)>)>>);

#endif  // SMARTSWAP_NPU
