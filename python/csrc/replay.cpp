// Keeps calls of cheap operators without their tensors, and calls them again.
#include "replay.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.h"

#ifdef SMARTSWAP_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace smartswap::replay {

namespace {

// A tensor as its memory and its shape: the tensor itself may be gone by then.
struct View {
  char* start = nullptr;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::TensorOptions options;
};

struct Argument {
  std::optional<View> view;
  // If it is no tensor of the device.
  c10::IValue value;
};

struct Target {
  void* memory;
  uint64_t size_bytes;
};

// A call that can be made again.
struct Call {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  // Its outputs, in the order in which it allocated them.
  std::vector<Target> outputs;
  uint64_t stream;
};

// What belongs to one thread.
struct Thread {
  std::optional<Call> captured;
  std::vector<void*> allocated;
  // While a call is made again: its outputs, the next one last.
  std::vector<Target> targets;
};

Thread& thread() {
  static thread_local Thread value;
  return value;
}

char* memory_of(const at::Tensor& tensor) {
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage == nullptr ? nullptr
                            : static_cast<char*>(storage->_mutable_data_ptr_no_checks().get());
}

// A plain tensor in memory that the engine moves. Of other memory it does not know who writes it.
std::optional<View> view_of(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  const bool plain = impl->has_storage() && tensor.layout() == at::kStrided &&
      !impl->is_python_dispatch() && !tensor.is_conj() && !tensor.is_neg() &&
      !tensor.is_quantized();
  if (!plain) {
    return std::nullopt;
  }
  char* memory = memory_of(tensor);
  if (memory == nullptr || smartswap_moves(memory) == 0) {
    return std::nullopt;
  }
  View view;
  view.start = memory + tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.options = at::TensorOptions().dtype(tensor.dtype()).device(tensor.device());
  return view;
}

std::optional<Argument> argument_of(const c10::IValue& value) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) {
      return Argument{std::nullopt, value};
    }
    // Python numbers come as tensors of the CPU.
    const bool number = tensor.device().is_cpu() && tensor.dim() == 0 &&
        attached().type != c10::DeviceType::CPU && !tensor.requires_grad();
    if (number) {
      return Argument{std::nullopt, tensor.clone()};
    }
    auto view = view_of(tensor);
    return view ? std::optional<Argument>({std::move(view), c10::IValue()}) : std::nullopt;
  }
  const bool plain = value.isNone() || value.isInt() || value.isDouble() || value.isBool() ||
      value.isString() || value.isIntList() || value.isDevice();
  return plain ? std::optional<Argument>({std::nullopt, value}) : std::nullopt;
}

// Whether operators of this thread go straight to their kernels.
bool is_plain_thread() {
  const auto tls = c10::impl::tls_local_dispatch_key_set();
  const auto usual = c10::default_included_set;
  return (tls.included_ - usual).empty() && !at::autocast::is_autocast_enabled(attached().type);
}

void release(void* data) {
  delete static_cast<Call*>(data);
}

void call_again(const Call& call) {
  const at::DisableRecordFunctionGuard unwatched;
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
#ifdef SMARTSWAP_CUDA
  std::optional<c10::cuda::CUDAStreamGuard> on_its_stream;
  if (attached().type == c10::DeviceType::CUDA) {
    const auto raw = reinterpret_cast<cudaStream_t>(call.stream);
    const auto index = attached().index;
    on_its_stream.emplace(
        raw == nullptr ? c10::cuda::getDefaultCUDAStream(index)
                       : c10::cuda::getStreamFromExternal(raw, index));
  }
#endif
  torch::jit::Stack stack;
  for (const auto& argument : call.arguments) {
    if (argument.view) {
      const auto& view = *argument.view;
      stack.emplace_back(at::from_blob(
          view.start, view.sizes, view.strides, [](void*) {}, view.options,
          view.options.device()));
    } else {
      stack.push_back(argument.value);
    }
  }
  auto& targets = thread().targets;
  targets.assign(call.outputs.rbegin(), call.outputs.rend());
  call.op.callBoxed(stack);
  TORCH_CHECK(targets.empty(), "it did not write all of its outputs again");
}

int run(void* data) {
  int failed = 0;
  try {
    call_again(*static_cast<Call*>(data));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "SmartSwap: running an operator again failed: %s\n", error.what());
    failed = 1;
  } catch (...) {
    failed = 1;
  }
  thread().targets.clear();
  return failed;
}

}  // namespace

bool is_cheap_and_sure(const char* name) {
  static constexpr std::string_view names[] = {
      "aten::abs",     "aten::add",     "aten::celu",        "aten::clamp",   "aten::cos",
      "aten::div",     "aten::elu",     "aten::exp",         "aten::gelu",    "aten::hardswish",
      "aten::log",     "aten::maximum", "aten::leaky_relu",  "aten::minimum", "aten::mish",
      "aten::mul",     "aten::neg",     "aten::pow",         "aten::relu",    "aten::rsqrt",
      "aten::sigmoid", "aten::silu",    "aten::sin",         "aten::softplus", "aten::sqrt",
      "aten::square",  "aten::sub",     "aten::tanh",        "aten::where",
      "aten::masked_fill"};
  return std::find(std::begin(names), std::end(names), std::string_view(name)) !=
      std::end(names);
}

void capture(const at::RecordFunction& fn, const c10::OperatorHandle& op) {
  auto& own = thread();
  own.captured.reset();
  own.allocated.clear();
  if (!is_plain_thread()) {
    return;
  }
  Call call{op, {}, {}, current_stream()};
  for (const auto& input : fn.inputs()) {
    auto argument = argument_of(input);
    if (!argument) {
      return;
    }
    call.arguments.push_back(std::move(*argument));
  }
  own.captured = std::move(call);
}

void offer(const at::RecordFunction& fn) {
  auto& own = thread();
  if (!own.captured) {
    return;
  }
  Call call = std::move(*own.captured);
  own.captured.reset();
  // Whatever it allocated besides would take the place of an output when it runs again.
  std::vector<void*> outputs;
  for (const auto& output : fn.outputs()) {
    if (!output.isTensor() || !output.toTensor().defined() ||
        !output.toTensor().unsafeGetTensorImpl()->has_storage()) {
      return;
    }
    outputs.push_back(memory_of(output.toTensor()));
  }
  for (void* memory : own.allocated) {
    uint64_t size_bytes = 0;
    const bool is_output = std::find(outputs.begin(), outputs.end(), memory) != outputs.end();
    if (!is_output || smartswap_find(memory, nullptr, &size_bytes) != SMARTSWAP_OK) {
      return;
    }
    call.outputs.push_back({memory, size_bytes});
  }
  if (call.outputs.empty()) {
    return;
  }
  const smartswap_replay replay = {&run, &release, new Call(std::move(call))};
  smartswap_offer_replay(&replay);
}

void note_allocation(void* memory) {
  auto& own = thread();
  if (own.captured && smartswap_moves(memory) != 0) {
    own.allocated.push_back(memory);
  }
}

void* take_target(uint64_t size_bytes) {
  auto& targets = thread().targets;
  if (targets.empty() || targets.back().size_bytes != size_bytes) {
    return nullptr;
  }
  void* memory = targets.back().memory;
  targets.pop_back();
  return memory;
}

void keep(void*) {}

}  // namespace smartswap::replay
