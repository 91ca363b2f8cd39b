// What PyTorch does not know of the tensors and generators of torch_npu, which keeps beside each
// storage how its bytes are laid out, and chooses kernels by that.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

namespace torch_npu {
struct NPUStorageDesc;
}

namespace smartswap {

using NpuLayout = torch_npu::NPUStorageDesc;

#ifdef SMARTSWAP_NPU
// The layout of a tensor's storage; null if it is none of torch_npu's.
std::shared_ptr<const NpuLayout> npu_layout_of(const at::Tensor& tensor);
// Adds all of a layout to what tells calls apart.
void add_npu_layout(const NpuLayout& layout, std::string& kind);
// A tensor in a storage of so many bytes, which it does not own. Without a layout the elements lie
// there in a row.
at::Tensor npu_tensor_at(
    void* memory, size_t size_bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
    int64_t offset, const at::TensorOptions& options, const NpuLayout* layout);
// A contiguous tensor in memory that `release` gives back.
at::Tensor npu_tensor_owning(
    void* memory, std::function<void(void*)> release, at::IntArrayRef sizes,
    const at::TensorOptions& options);
// The generator that operators of a device use unless they are told another one.
at::Generator default_npu_generator(c10::DeviceIndex device);
#endif

}  // namespace smartswap
