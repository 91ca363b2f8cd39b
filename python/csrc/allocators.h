// The engine as PyTorch's allocator of a device.
#pragma once

namespace smartswap {

// Replaces the allocator of CPU tensors.
void install_cpu_allocator();
// Puts the one from before back. Memory of the engine that lives on stays valid.
void remove_cpu_allocator();

#ifdef SMARTSWAP_CUDA
// Replaces the allocator of CUDA tensors. Fails if the old one holds memory of the device.
void install_cuda_allocator();
void remove_cuda_allocator();
#endif

}  // namespace smartswap
