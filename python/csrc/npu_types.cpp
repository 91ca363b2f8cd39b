// Storages and generators of torch_npu.
#include "npu_types.h"

#ifdef SMARTSWAP_NPU

#include <torch_npu/csrc/aten/NPUGeneratorImpl.h>
#include <torch_npu/csrc/aten/common/from_blob.h>
#include <torch_npu/csrc/core/NPUStorageImpl.h>

namespace smartswap {

namespace {

torch_npu::NPUStorageImpl& storage_of(const at::Tensor& tensor) {
  return *static_cast<torch_npu::NPUStorageImpl*>(tensor.storage().unsafeGetStorageImpl());
}

void lay_out_in_a_row(torch_npu::NPUStorageImpl& storage, caffe2::TypeMeta type) {
  auto& own = storage.npu_desc_;
  own.base_sizes_ = {static_cast<int64_t>(storage.nbytes() / type.itemsize())};
  own.base_strides_ = {1};
  own.storage_sizes_ = own.base_sizes_;
  own.data_type_ = type;
}

template <class Number>
void add(Number number, std::string& kind) {
  kind.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

}  // namespace

std::shared_ptr<const NpuLayout> npu_layout_of(const at::Tensor& tensor) {
  return tensor.is_privateuseone() ? std::make_shared<NpuLayout>(storage_of(tensor).npu_desc_)
                                   : nullptr;
}

void add_npu_layout(const NpuLayout& layout, std::string& kind) {
  for (const auto* extents : {&layout.base_sizes_, &layout.base_strides_, &layout.storage_sizes_}) {
    add(extents->size(), kind);
    for (const int64_t extent : *extents) {
      add(extent, kind);
    }
  }
  add(layout.origin_format_, kind);
  add(layout.npu_format_, kind);
}

at::Tensor npu_tensor_at(
    void* memory, size_t size_bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
    int64_t offset, const at::TensorOptions& options, const NpuLayout* layout) {
  auto tensor =
      at_npu::native::from_blob(memory, sizes, strides, offset, options, options.device());
  auto& storage = storage_of(tensor);
  storage.set_nbytes(size_bytes);
  if (layout != nullptr) {
    storage.npu_desc_ = *layout;
    storage.npu_desc_.data_type_ = options.dtype();
  } else {
    lay_out_in_a_row(storage, options.dtype());
  }
  return tensor;
}

at::Tensor npu_tensor_owning(
    void* memory, std::function<void(void*)> release, at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  auto tensor =
      at_npu::native::from_blob(memory, sizes, std::move(release), options, options.device());
  // What it has by itself fits no tensor of several dimensions.
  lay_out_in_a_row(storage_of(tensor), options.dtype());
  return tensor;
}

at::Generator default_npu_generator(c10::DeviceIndex device) {
  return at_npu::detail::getDefaultNPUGenerator(device);
}

}  // namespace smartswap

#endif  // SMARTSWAP_NPU
