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

#include "pluggable.h"

namespace pluggable = smartswap::pluggable;
using smartswap::handle_of;

namespace {

constexpr char kGraphs[] =
    "SmartSwap: CUDA graphs and memory pools need memory that stays: train without them";

}  // namespace

SMARTSWAP_EXPORT void* smartswap_cuda_malloc(size_t size_bytes, int, cudaStream_t stream) {
  return pluggable::allocate(size_bytes, handle_of(stream));
}

SMARTSWAP_EXPORT void smartswap_cuda_free(void* memory, size_t, int, cudaStream_t) {
  pluggable::release(memory);
}

SMARTSWAP_EXPORT void smartswap_cuda_init(int) {
  pluggable::require_engine();
}

SMARTSWAP_EXPORT void smartswap_cuda_empty_cache() {
  smartswap::check(smartswap_trim());
}

SMARTSWAP_EXPORT void smartswap_cuda_memory_fraction(double fraction, int) {
  smartswap::warn_of_fraction(fraction);
}

SMARTSWAP_EXPORT void* smartswap_cuda_base_alloc(void* memory, size_t* size_bytes) {
  return pluggable::require_base(memory, size_bytes);
}

SMARTSWAP_EXPORT void smartswap_cuda_record_stream(void* memory, cudaStream_t stream) {
  pluggable::use_on(memory, handle_of(stream));
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
