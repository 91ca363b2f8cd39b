// What there is to know about an operator, from its schema and its kernels.
#include "operators.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/function_schema.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "engine.h"
#include "tensors.h"

namespace smartswap {

namespace {

// Operators that look at the shape of tensors alone, although their schema does not say so.
bool looks_at_shape(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::empty_like",      "aten::zeros_like",
      "aten::ones_like",       "aten::full_like",
      "aten::rand_like",       "aten::randn_like",
      "aten::randint_like",    "aten::new_empty",
      "aten::new_zeros",       "aten::new_ones",
      "aten::new_full",        "aten::new_empty_strided",
      "aten::is_same_size",    "aten::result_type",
      "aten::record_stream",   "aten::can_cast",
      "aten::set_",            "aten::set_data",
      "aten::is_set_to",       "aten::is_pinned",
      "aten::is_coalesced",    "aten::_nnz",
      "aten::sparse_dim",      "aten::dense_dim",
      "aten::_coalesced_",     "aten::requires_grad_",
      "aten::retain_grad",     "aten::_fused_sdp_choice",
      "aten::_version",        "aten::is_leaf",
      "aten::output_nr",       "aten::_has_same_storage_numel",
      "aten::_has_compatible_shallow_copy_type"};
  return names.count(name) != 0;
}

c10::DispatchKey kernel_key(c10::DeviceType type) {
  switch (type) {
    case c10::DeviceType::CPU:
      return c10::DispatchKey::CPU;
    case c10::DeviceType::CUDA:
      return c10::DispatchKey::CUDA;
    default:
      return c10::DispatchKey::PrivateUse1;
  }
}

// Of PyTorch's own operators alone: others may use memory themselves around what they call. One
// that is put together of others runs so whatever kernel it has for autograd in general: `linear`
// and `matmul` have one for nested tensors, which the dispatcher takes where a device has its own.
bool has_no_kernel(const c10::OperatorHandle& op, c10::DispatchKey device_key) {
  const auto autograd_key = c10::getAutogradKeyFromBackend(c10::toBackendComponent(device_key));
  const auto has = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  return op.schema().getNamespace() == "aten" &&
      has(c10::DispatchKey::CompositeImplicitAutograd) && !has(device_key) &&
      !has(c10::DispatchKey::CompositeExplicitAutograd) && !has(autograd_key);
}

enum class Kernels { unknown, own, foreign };

std::atomic<Kernels> kernels{Kernels::unknown};

// By where the dispatcher says that each kernel was registered. Those for the shape alone, for
// other devices and for modes may be anyone's.
bool has_foreign_kernel(const c10::OperatorHandle& op) {
  const auto has = [](const std::string& line, const char* text) {
    return line.find(text) != std::string::npos;
  };
  const auto runs = [own = toString(kernel_key(attached().type))](const std::string& line) {
    for (const char* key : {own, "Autograd", "Autocast", "Composite", "ADInplace", "BackendSel"}) {
      if (line.rfind(key, 0) == 0) {
        return true;
      }
    }
    return false;
  };
  std::istringstream lines(op.dumpState());
  for (std::string line; std::getline(lines, line);) {
    if (has(line, ": registered at ") && runs(line) && !has(line, "/aten/src/ATen/") &&
        !has(line, "/torch/csrc/")) {
      return true;
    }
  }
  return false;
}

bool is_plain(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return true;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  const bool strided = impl->has_storage() && impl->layout() == at::kStrided &&
      !impl->is_python_dispatch() && !impl->is_nested() && !tensor.is_quantized();
  // On the host an operator may read lengths and indices itself, however it is put together.
  const bool may_be_read = attached().type == c10::DeviceType::CPU &&
      at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) && strided &&
      smartswap_moves(start_of(impl->unsafe_storage())) != 0;
  return strided && !may_be_read;
}

bool is_plain(const c10::IValue& value) {
  if (value.isTensor()) {
    return is_plain(value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto elements = value.toListRef();
    return std::all_of(elements.begin(), elements.end(), [](const c10::IValue& element) {
      return !element.isTensor() || is_plain(element.toTensor());
    });
  }
  return true;
}

bool are_plain(const at::RecordFunction& fn) {
  const auto inputs = fn.inputs();
  return std::all_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
    return is_plain(input);
  });
}

// Whether a dispatch mode of Python's or of functorch's is on.
bool has_mode() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return !(keys.included_ - c10::default_included_set).empty();
}

// Whether a transform of torch.func (vmap, grad, jvp) takes the calls of this thread: it does them
// by calls of its own, of the same operator or of others, until none of its layers is left.
bool is_transformed() {
  constexpr c10::DispatchKeySet layers(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode});
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return (keys.included_ - keys.excluded_).has_any(layers);
}

// Where what a value names is, as far as it says.
enum class Whereabouts { unsaid, here, elsewhere };

Whereabouts whereabouts(const c10::Device& device) {
  return device.type() == attached().type ? Whereabouts::here : Whereabouts::elsewhere;
}

Whereabouts whereabouts(const c10::IValue& value) {
  if (value.isDevice()) {
    return whereabouts(value.toDevice());
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) {
      return Whereabouts::unsaid;
    }
    // What a wrapper stands for may be anywhere.
    const auto* impl = tensor.unsafeGetTensorImpl();
    return impl->is_python_dispatch() ? Whereabouts::here : whereabouts(impl->device());
  }
  if (!may_have_storages(value)) {
    return Whereabouts::unsaid;
  }
  auto found = Whereabouts::unsaid;
  for (const c10::IValue& element : value.toListRef()) {
    const auto one = whereabouts(element);
    if (one == Whereabouts::here) {
      return one;
    }
    found = one == Whereabouts::elsewhere ? one : found;
  }
  return found;
}

Operator describe(const at::RecordFunction& fn) {
  Operator made;
  made.key = fn.name();
  made.name = fn.name();
  const auto schema = fn.operator_schema();
  made.is_collective = made.name.rfind("c10d::", 0) == 0 ||
      made.name.rfind("_c10d_functional::", 0) == 0 ||
      made.name.rfind("c10d_functional::", 0) == 0;
  for (const auto& argument : schema->arguments()) {
    made.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    made.overwrites.push_back(argument.is_out());
  }
  bool writes_none = true;
  for (const bool written : made.writes) {
    writes_none = writes_none && !written;
  }
  bool aliases = !schema->returns().empty();
  for (const auto& result : schema->returns()) {
    aliases = aliases && result.alias_info() != nullptr;
  }
  made.returns_inputs = aliases;
  const bool reads_shapes = looks_at_shape(made.name);
  // One view has no schema that says so, for the backward pass's sake.
  made.is_view = (aliases && writes_none && !reads_shapes) || made.name == "aten::_unsafe_view";
  made.is_metadata = reads_shapes || made.is_view;
  made.unsaid = replay::unsaid(*schema);
  const auto op = c10::Dispatcher::singleton().findSchema(*fn.operator_name());
  if (!op) {
    return made;
  }
  const auto type = attached().type;
  made.only_calls = has_no_kernel(*op, kernel_key(type));
  made.is_view = made.is_view || (made.is_metadata && made.only_calls);
  made.autocasts = op->hasKernelForDispatchKey(
      at::autocast::get_autocast_dispatch_key_from_device_type(type));
  made.is_built_in = op->schema().getNamespace() == "aten";
  made.draws = op->hasTag(at::Tag::nondeterministic_seeded);
  if (!made.is_collective) {
    made.again = replay::candidate(*op, made.name, reads_shapes);
  }
  return made;
}

// What one thread has called so far.
struct Known {
  // By the address of an operator's name.
  std::unordered_map<const char*, std::unique_ptr<Operator>> operators;
  // Those found last, each in the slot of its address: half of what is called are views, and all
  // that is done for them is to find them.
  std::array<const Operator*, 1024> found = {};
};

}  // namespace

smartswap_access Operator::use_of(c10::ArrayRef<const c10::IValue> inputs, size_t index) const {
  const bool fills = index < overwrites.size() && overwrites[index] &&
      inputs[index].isTensor() && fills_storage(inputs[index].toTensor());
  if (fills) {
    return SMARTSWAP_WRITE;
  }
  const bool written = (index < writes.size() && writes[index]) || unsaid.changes(inputs, index);
  return written ? SMARTSWAP_READ_WRITE : SMARTSWAP_READ;
}

// The names of other things than operators may be temporary, while that of an operator lies in its
// schema, so each overload has a place of its own.
const Operator* find_operator(const at::RecordFunction& fn) {
  static thread_local Known known;
  const char* name = fn.name();
  const auto is_of = [name](const Operator* op) {
    return op->key == name && std::strcmp(op->name.c_str(), name) == 0;
  };
  const auto mixed = reinterpret_cast<uintptr_t>(name) * 0x9e3779b97f4a7c15u;
  const Operator*& slot = known.found[mixed >> 54];
  if (C10_LIKELY(slot != nullptr && is_of(slot))) {
    return slot;
  }
  const auto before = known.operators.find(name);
  if (before != known.operators.end() && is_of(before->second.get())) {
    return slot = before->second.get();
  }
  if (!fn.operator_name()) {
    return nullptr;
  }
  auto& entry = known.operators[name];
  entry = std::make_unique<Operator>(describe(fn));
  return slot = entry.get();
}

bool calls_others(const at::RecordFunction& fn, const Operator& op) {
  if (C10_UNLIKELY(is_transformed()) && !op.is_collective) {
    return true;
  }
  const auto type = attached().type;
  const bool casts = op.autocasts && at::autocast::is_autocast_enabled(type);
  if (!op.only_calls && !(casts && op.name.compare(0, 6, "aten::") == 0)) {
    return false;
  }
  return !has_mode() && are_plain(fn);
}

void look_for_foreign_kernels() {
  if (kernels.load() != Kernels::unknown) {
    return;
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto names = dispatcher.getAllOpNames();
  const bool is_any = std::any_of(names.begin(), names.end(), [&](const auto& name) {
    const auto op = dispatcher.findSchema(name);
    return op && op->schema().getNamespace() == "aten" && has_foreign_kernel(*op);
  });
  auto before = Kernels::unknown;
  kernels.compare_exchange_strong(before, is_any ? Kernels::foreign : Kernels::own);
}

void note_foreign_kernel() {
  kernels.store(Kernels::foreign);
}

// Beside its kernels, what autocast has kept of other calls, hooks for saved tensors and wrappers
// of Python's may come into a call. And a profiler wants to see what it calls.
bool tells_all(const at::RecordFunction& fn, const Operator& op) {
  return op.is_built_in && kernels.load(std::memory_order_relaxed) == Kernels::own &&
      !at::autocast::is_autocast_enabled(attached().type) && !has_mode() &&
      at::SavedTensorDefaultHooks::get_tls_state().stack.empty() &&
      !at::hasThreadLocalCallbacks() && are_plain(fn);
}

bool is_elsewhere(const at::RecordFunction& fn, const Operator& op) {
  if (op.is_collective) {
    return false;
  }
  bool is_said = false;
  for (const c10::IValue& input : fn.inputs()) {
    const auto one = whereabouts(input);
    if (one == Whereabouts::here) {
      return false;
    }
    is_said = is_said || one == Whereabouts::elsewhere;
  }
  return is_said;
}

}  // namespace smartswap
