// What torch.cuda.memory.CUDAPluggableAllocator looks for, by plain names. Unlike those of
// libsmartswap.so they may throw, so that Python sees an OutOfMemoryError with the engine's text.
//
// The package itself uses cuda_allocator.cpp, which has statistics too; these are for programs
// that bring their own allocator object.
#ifdef SMARTSWAP_CUDA

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "engine.h"

#define SMARTSWAP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr char kGraphs[] =
    "SmartSwap: CUDA graphs and memory pools need memory that stays: train without them";

uint64_t handle_of(cudaStream_t stream) {
  return reinterpret_cast<uint64_t>(stream);
}

}  // namespace

SMARTSWAP_EXPORT void* smartswap_cuda_malloc(size_t size_bytes, int, cudaStream_t stream) {
  if (size_bytes == 0) {
    return nullptr;
  }
  void* memory = smartswap_allocate(size_bytes, handle_of(stream));
  if (memory == nullptr) {
    const std::string text = smartswap_last_error();
    smartswap::raise(SMARTSWAP_OUT_OF_MEMORY, text);
  }
  return memory;
}

// Called by the deleters of tensors, which must not throw.
SMARTSWAP_EXPORT void smartswap_cuda_free(void* memory, size_t, int, cudaStream_t) {
  if (memory == nullptr || smartswap::in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK) {
    TORCH_WARN("SmartSwap: ", smartswap_last_error());
  }
}

SMARTSWAP_EXPORT void smartswap_cuda_init(int) {
  TORCH_CHECK(
      smartswap_is_open() != 0,
      "SmartSwap: the engine is not open: call smartswap_open before the device is used");
  smartswap::watch_forks();
}

SMARTSWAP_EXPORT void smartswap_cuda_empty_cache() {
  smartswap::check(smartswap_trim());
}

SMARTSWAP_EXPORT void smartswap_cuda_memory_fraction(double fraction, int) {
  TORCH_WARN_ONCE(
      "SmartSwap: the cap stays what the engine was opened with; a memory fraction of ", fraction,
      " is not taken");
}

SMARTSWAP_EXPORT void* smartswap_cuda_base_alloc(void* memory, size_t* size_bytes) {
  void* start = nullptr;
  uint64_t bytes = 0;
  smartswap::check(smartswap_find(memory, &start, &bytes));
  if (size_bytes != nullptr) {
    *size_bytes = bytes;
  }
  return start;
}

SMARTSWAP_EXPORT void smartswap_cuda_record_stream(void* memory, cudaStream_t stream) {
  if (memory != nullptr) {
    smartswap::check(smartswap_use_on(memory, handle_of(stream)));
  }
}

SMARTSWAP_EXPORT void smartswap_cuda_begin_allocate_to_pool(
    int, c10::MempoolId_t, std::function<bool(cudaStream_t)>) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kGraphs);
}

SMARTSWAP_EXPORT void smartswap_cuda_end_allocate_to_pool(int, c10::MempoolId_t) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, kGraphs);
}

// No pool was ever begun, so there is none to release.
SMARTSWAP_EXPORT void smartswap_cuda_release_pool(int, c10::MempoolId_t) {}

#endif  // SMARTSWAP_CUDA
