// The engine as torch_npu's allocator.
#pragma once

#include <cstdint>

namespace smartswap {

#ifdef SMARTSWAP_NPU
// Replaces the allocator of NPU tensors. Call it before the device is used. Fails where torch_npu
// queues its operators.
void install_npu_allocator();
// Puts the one from before back. Memory of the engine that lives on stays valid.
void remove_npu_allocator();
// The stream on which NPU operators of the calling thread run now.
uint64_t current_npu_stream();
#endif

}  // namespace smartswap
