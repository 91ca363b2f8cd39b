// The engine as torch_npu's allocator.
#pragma once

#include <cstdint>

namespace smartswap {

#ifdef SMARTSWAP_NPU
// Replaces the allocator of NPU tensors. Call it before the device is used.
void install_npu_allocator();
// Puts the one from before back. Memory of the engine that lives on stays valid.
void remove_npu_allocator();
// PyTorch's default stream of a device. Fails where torch_npu queues its operators.
uint64_t default_npu_stream(int device);
// The stream on which NPU operators of the calling thread run now.
uint64_t current_npu_stream();
#endif

}  // namespace smartswap
