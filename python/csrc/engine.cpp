// Codes to exceptions, and the current stream.
#include "engine.h"

#include <c10/util/Exception.h>

#ifdef SMARTSWAP_CUDA
#include <c10/cuda/CUDAStream.h>
#endif
#include "npu_allocator.h"

namespace smartswap {

Attached& attached() {
  static Attached value;
  return value;
}

// Each is thrown here and not, as TORCH_CHECK does, by PyTorch's library: where the compiler gives
// this one a C++ runtime of its own, that alone is asked whether an operator is being left.
void raise(int code, const std::string& text) {
  switch (code) {
    case SMARTSWAP_OUT_OF_MEMORY:
      TORCH_CHECK_WITH(OutOfMemoryError, false, "SmartSwap: ", text);
    case SMARTSWAP_SETTINGS:
      TORCH_CHECK_VALUE(false, "SmartSwap: ", text);
    default:
      TORCH_CHECK_WITH(Error, false, "SmartSwap: ", text);
  }
}

void check(int code) {
  if (C10_UNLIKELY(code != SMARTSWAP_OK)) {
    raise(code, smartswap_last_error());
  }
}

void* base_of(const void* memory, size_t* size_bytes) {
  void* start = nullptr;
  uint64_t bytes = 0;
  if (smartswap_find(memory, &start, &bytes) != SMARTSWAP_OK) {
    return nullptr;
  }
  if (size_bytes != nullptr) {
    *size_bytes = bytes;
  }
  return start;
}

smartswap_stats engine_stats() {
  smartswap_stats now = {};
  now.struct_size = sizeof(now);
  check(smartswap_get_stats(&now));
  return now;
}

uint64_t current_stream() {
#ifdef SMARTSWAP_CUDA
  if (attached().type == c10::DeviceType::CUDA) {
    const auto stream = c10::cuda::getCurrentCUDAStream(attached().index).stream();
    return reinterpret_cast<uint64_t>(stream);
  }
#endif
#ifdef SMARTSWAP_NPU
  if (attached().type == c10::DeviceType::PrivateUse1) {
    return current_npu_stream();
  }
#endif
  return 0;
}

}  // namespace smartswap
