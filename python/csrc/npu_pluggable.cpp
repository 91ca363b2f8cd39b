// What torch_npu.npu.memory.NPUPluggableAllocator looks for, by plain names. Unlike those of
// libsmartswap.so they may throw, so that Python sees an OutOfMemoryError with the engine's text.
//
// They have the types of the torch_npu that they were compiled against.
#ifdef SMARTSWAP_NPU

#include <torch/version.h>
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <atomic>
#include <functional>

#include "engine.h"
#include "npu_statistics.h"

#define SMARTSWAP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

namespace caching = c10_npu::NPUCachingAllocator;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
using DeviceNumber = c10::DeviceIndex;
#else
using DeviceNumber = int;
#endif

std::atomic<int64_t> out_of_memory_count{0};

constexpr char kGraphs[] =
    "SmartSwap: NPU graphs and memory pools need memory that stays: train without them";

uint64_t handle_of(aclrtStream stream) {
  return reinterpret_cast<uint64_t>(stream);
}

}  // namespace

SMARTSWAP_EXPORT void* smartswap_npu_malloc(size_t size_bytes, int, aclrtStream stream) {
  if (size_bytes == 0) {
    return nullptr;
  }
  void* memory = smartswap_allocate(size_bytes, handle_of(stream));
  if (memory == nullptr) {
    const std::string text = smartswap_last_error();
    out_of_memory_count.fetch_add(1, std::memory_order_relaxed);
    smartswap::raise(SMARTSWAP_OUT_OF_MEMORY, text);
  }
  return memory;
}

// Called by the deleters of tensors, which must not throw.
SMARTSWAP_EXPORT void smartswap_npu_free(void* memory, size_t, int, aclrtStream) {
  if (memory == nullptr || smartswap::in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK) {
    TORCH_WARN("SmartSwap: ", smartswap_last_error());
  }
}

SMARTSWAP_EXPORT void smartswap_npu_init(int) {
  TORCH_CHECK(
      smartswap_is_open() != 0,
      "SmartSwap: the engine is not open: call smartswap_open before the device is used");
  smartswap::watch_forks();
}

SMARTSWAP_EXPORT void smartswap_npu_empty_cache(bool) {
  smartswap::check(smartswap_trim());
}

SMARTSWAP_EXPORT void smartswap_npu_memory_fraction(double fraction, int) {
  TORCH_WARN_ONCE(
      "SmartSwap: the cap stays what the engine was opened with; a memory fraction of ", fraction,
      " is not taken");
}

SMARTSWAP_EXPORT void* smartswap_npu_base_alloc(void* memory, size_t* size_bytes) {
  void* start = nullptr;
  uint64_t bytes = 0;
  smartswap::check(smartswap_find(memory, &start, &bytes));
  if (size_bytes != nullptr) {
    *size_bytes = bytes;
  }
  return start;
}

SMARTSWAP_EXPORT void smartswap_npu_record_stream(void* memory, c10_npu::NPUStream stream) {
  if (memory != nullptr) {
    smartswap::check(smartswap_use_on(memory, handle_of(stream.stream())));
  }
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
  return smartswap::npu::device_stats(out_of_memory_count.load(std::memory_order_relaxed));
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
