// The arguments of a call, kept without its tensors.
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>

#include "engine.h"
#include "replay_call.h"
#include "replay_state.h"
#include "tensors.h"

namespace smartswap::replay {

namespace {

// Tensors of the host up to this size are kept by value, as nobody says who writes them.
constexpr size_t kHostBytesMax = 4096;
// Kernels look at the alignment of pointers up to so much.
constexpr uintptr_t kAlignment = 64;

bool is_plain(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() && tensor.layout() == at::kStrided && !impl->is_python_dispatch() &&
      !tensor.is_quantized() && !tensor._is_zerotensor() && !tensor.is_nested();
}

// Goes through the arguments of one call.
class Keeper {
 public:
  Keeper(Reading reading, Arguments& kept) : reading_(reading), kept_(kept) {}

  void keep_all(
      c10::ArrayRef<const c10::IValue> inputs, const std::function<Use(size_t)>& use_of) {
    kept_.all.reserve(inputs.size());
    for (size_t index = 0; index < inputs.size() && refusal_ == nullptr; ++index) {
      kept_.all.emplace_back();
      keep(inputs[index], use_of(index), kept_.all.back());
    }
  }

  const char* refusal() const {
    return refusal_;
  }

 private:
  void refuse(const char* why) {
    refusal_ = why;
  }

  // Every kind of argument is told by a letter of its own, so that two lists of arguments never
  // read the same.
  void mark(char letter) {
    kept_.kind.push_back(letter);
  }
  template <class Number>
  void mark(char letter, Number number) {
    mark(letter);
    kept_.kind.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void mark(const Extents& extents) {
    mark('x', extents.size());
    kept_.kind.append(
        reinterpret_cast<const char*>(extents.data()), extents.size() * sizeof(int64_t));
  }

  void keep(const c10::IValue& value, Use use, Argument& argument) {
    if (value.isTensor()) {
      keep_tensor(value.toTensor(), use, argument);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      keep_list(value, use, argument);
    } else {
      keep_value(value, argument);
    }
  }

  void keep_value(const c10::IValue& value, Argument& argument) {
    if (value.isNone()) {
      mark('n');
    } else if (value.isInt()) {
      mark('i', value.toInt());
    } else if (value.isDouble()) {
      mark('d', value.toDouble());
    } else if (value.isBool()) {
      mark('b', value.toBool());
    } else if (value.isComplexDouble()) {
      mark('c', value.toComplexDouble());
    } else if (value.isString()) {
      mark('s', value.toStringRef().size());
      kept_.kind += value.toStringRef();
    } else if (value.isDevice()) {
      mark('D', value.toDevice().type());
      mark('D', value.toDevice().index());
    } else if (value.isGenerator()) {
      mark('g');
    } else if (value.isIntList()) {
      const auto list = value.toIntList();
      mark('I', list.size());
      for (const int64_t number : list) {
        mark('i', number);
      }
    } else if (value.isDoubleList()) {
      const auto list = value.toDoubleList();
      mark('F', list.size());
      for (const double number : list) {
        mark('d', number);
      }
    } else if (value.isBoolList()) {
      const auto list = value.toBoolList();
      mark('B', list.size());
      for (const bool number : list) {
        mark('b', number);
      }
    } else if (value.isList() && value.toListRef().size() <= 64) {
      keep_scalars(value);
    } else {
      return refuse("an argument of another kind");
    }
    argument.value = value;
  }

  // Such as the numbers of a foreach operator.
  void keep_scalars(const c10::IValue& value) {
    mark('S', value.toListRef().size());
    for (const auto& element : value.toListRef()) {
      Argument ignored;
      if (element.isTensor() || element.isList() || element.isGenerator()) {
        return refuse("an argument of another kind");
      }
      keep_value(element, ignored);
    }
  }

  void keep_list(const c10::IValue& value, Use use, Argument& argument) {
    if (use == Use::written) {
      return refuse("a list of outputs");
    }
    List list;
    list.has_optional = value.isOptionalTensorList();
    mark(list.has_optional ? 'O' : 'L', value.toListRef().size());
    list.elements.reserve(value.toListRef().size());
    for (const auto& element : value.toListRef()) {
      list.elements.emplace_back();
      keep(element, Use::read, list.elements.back());
    }
    argument.value = std::move(list);
  }

  void keep_tensor(const at::Tensor& tensor, Use use, Argument& argument) {
    if (!tensor.defined()) {
      mark('u');
      argument.value = c10::IValue(tensor);
      return;
    }
    if (!is_plain(tensor)) {
      return refuse("a tensor that is not strided memory");
    }
    // The number of elements where a mask is true says how large the output is.
    if (reading_.masks_size_outputs &&
        (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte)) {
      return refuse("a mask as index");
    }
    if (use == Use::written && !fills_storage(tensor)) {
      return refuse("an output that is a part of its memory");
    }
    auto& view = argument.value.emplace<View>(view_of(tensor));
    view.requires_grad = tensor.requires_grad();
    view.is_conj = tensor.is_conj();
    view.is_neg = tensor.is_neg();
    view.is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    view.use = use;
    find_memory(tensor, view);
    mark('t', view.type);
    mark('f', view.device.type());
    mark('f', static_cast<char>(view.requires_grad | view.is_conj << 1 | view.is_neg << 2 |
                                view.is_number << 3));
    mark('a', reinterpret_cast<uintptr_t>(view.memory) % kAlignment);
    mark('o', view.offset);
    mark('o', view.size_bytes);
    mark(view.sizes);
    mark(view.strides);
#ifdef SMARTSWAP_NPU
    if (view.npu_layout != nullptr) {
      add_npu_layout(*view.npu_layout, kept_.kind);
    }
#endif
  }

  void find_memory(const at::Tensor& tensor, View& view) {
    char* memory = std::exchange(view.memory, nullptr);
    if (tensor.numel() == 0 || reading_.shapes_only) {
      // Whoever resolves a conjugate first copies its bytes.
      view.is_conj = view.is_neg = false;
      return;
    }
    if (memory == nullptr) {
      return refuse("a tensor without memory");
    }
    view.memory = memory;
    const auto& owner = attached();
    const bool is_ours = tensor.device().type() == owner.type &&
        (owner.type == c10::kCPU || tensor.device().index() == owner.index);
    if (is_ours && !view.is_number) {
      if (smartswap_moves(memory) != 0) {
        return;
      }
      if (smartswap_find(memory, nullptr, nullptr) == SMARTSWAP_OK) {
        if (view.use == Use::read) {
          kept_.small.push_back(memory);
        }
        return;
      }
    }
    const bool may_be_kept = tensor.device().is_cpu() && view.size_bytes <= kHostBytesMax;
    if (!may_be_kept || view.use == Use::written) {
      return refuse("memory that is not the engine's");
    }
    // Aligned as PyTorch's own, so that all calls with such a value are of one kind.
    view.bytes.reset(static_cast<char*>(c10::alloc_cpu(view.size_bytes)), &c10::free_cpu);
    std::memcpy(view.bytes.get(), memory, view.size_bytes);
    view.memory = view.bytes.get();
  }

  const Reading reading_;
  Arguments& kept_;
  const char* refusal_ = nullptr;
};

bool writes_an_input(std::vector<Argument>& arguments) {
  c10::SmallVector<const char*, 4> written;
  visit_views(arguments, [&](const View& view) {
    if (view.use == Use::written && view.memory != nullptr) {
      written.push_back(view.memory);
    }
  });
  size_t uses = 0;
  for (const char* memory : written) {
    visit_views(arguments, [&](const View& view) { uses += view.memory == memory ? 1 : 0; });
  }
  return uses > written.size();
}

}  // namespace

char* memory_of(const at::Tensor& tensor) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage == nullptr ? nullptr
                            : static_cast<char*>(storage->_mutable_data_ptr_no_checks().get());
}

View view_of(const at::Tensor& tensor) {
  View view;
  view.memory = memory_of(tensor);
  view.size_bytes = tensor.storage().nbytes();
  view.offset = tensor.storage_offset();
  view.sizes = tensor.sizes();
  view.strides = tensor.strides();
  view.type = tensor.scalar_type();
  view.device = tensor.device();
#ifdef SMARTSWAP_NPU
  view.npu_layout = npu_layout_of(tensor);
#endif
  return view;
}

at::Tensor View::around(char* memory) const {
  const auto options = at::TensorOptions().dtype(type).device(device);
#ifdef SMARTSWAP_NPU
  if (device.is_privateuseone()) {
    return npu_tensor_at(
        memory, size_bytes, sizes, strides, offset, options, npu_layout.get());
  }
#endif
  at::Tensor tensor = at::for_blob(memory, sizes)
                          .strides(strides)
                          .storage_offset(offset)
                          .options(options)
                          .target_device(options.device())
                          .make_tensor();
  // Some operators make what they return as large as the storage that they are given.
  tensor.storage().unsafeGetStorageImpl()->set_nbytes(size_bytes);
  return tensor;
}

at::Tensor View::at(char* memory) const {
  at::Tensor tensor = around(memory);
  if (is_number) {
    tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  if (is_conj) {
    tensor._set_conj(true);
  }
  if (is_neg) {
    tensor._set_neg(true);
  }
  if (requires_grad) {
    tensor.set_requires_grad(true);
  }
  return tensor;
}

const char* keep_arguments(
    c10::ArrayRef<const c10::IValue> inputs, Reading reading,
    const std::function<Use(size_t)>& use_of, Arguments& kept) {
  constexpr size_t usual_bytes = 512;
  kept.kind.reserve(usual_bytes);
  Keeper keeper(reading, kept);
  keeper.keep_all(inputs, use_of);
  if (keeper.refusal() != nullptr) {
    return keeper.refusal();
  }
  return writes_an_input(kept.all) ? "an output that is an input as well" : nullptr;
}

}  // namespace smartswap::replay
