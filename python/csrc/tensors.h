// The memory behind tensors and behind the values that operators take and return.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include "engine.h"

namespace smartswap {

// Where the memory of a storage begins, whether or not it may be used now.
inline char* start_of(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  return impl == nullptr ? nullptr
                         : static_cast<char*>(impl->_mutable_data_ptr_no_checks().get());
}

// Whether whoever writes the tensor writes all of its memory.
inline bool fills_storage(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
      tensor.is_non_overlapping_and_dense() && tensor.storage_offset() == 0 &&
      tensor.nbytes() == tensor.storage().nbytes();
}

// Calls `body` with the storages of a tensor that are memory of the engine's device: one of a
// dense tensor, several of a sparse one, none of a tensor of another device.
template <class Body>
void visit_storages(const at::Tensor& tensor, const Body& body) {
  if (!tensor.defined()) {
    return;
  }
  auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->has_storage()) {
    // A wrapper of Python's has none, and its device may be for Python to say.
    if (start_of(impl->unsafe_storage()) == nullptr) {
      return;
    }
    const auto& owner = attached();
    const auto device = tensor.device();
    const bool is_ours = device.type() == owner.type &&
        (owner.type == c10::DeviceType::CPU || device.index() == owner.index);
    if (is_ours) {
      body(impl->unsafe_storage());
    }
  } else if (const auto* sparse = dynamic_cast<const at::SparseTensorImpl*>(impl)) {
    visit_storages(sparse->indices(), body);
    visit_storages(sparse->values(), body);
  } else if (const auto* rows = dynamic_cast<const at::SparseCsrTensorImpl*>(impl)) {
    visit_storages(rows->compressed_indices(), body);
    visit_storages(rows->plain_indices(), body);
    visit_storages(rows->values(), body);
  }
}

// Whether there may be tensors in a value. Most lists are of numbers, and to ask one for its type
// makes that first.
inline bool may_have_storages(const c10::IValue& value) {
  return value.isTensor() ||
      (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList());
}

// The same for all tensors in a value: lists of them, and the lists of lists that collectives
// take.
template <class Body>
void visit_storages(const c10::IValue& value, const Body& body) {
  if (value.isTensor()) {
    visit_storages(value.toTensor(), body);
  } else if (!may_have_storages(value)) {
    return;
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit_storages(element.toTensor(), body);
      }
    }
  } else if (value.type()->kind() == c10::TypeKind::ListType &&
             value.toList().elementType()->kind() == c10::TypeKind::ListType) {
    for (const c10::IValue& element : value.toListRef()) {
      visit_storages(element, body);
    }
  }
}

}  // namespace smartswap
