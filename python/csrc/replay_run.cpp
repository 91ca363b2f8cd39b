// Calls an operator again, as it was called.
#include <ATen/autocast_mode.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <string>

#include "alone.h"
#include "engine.h"
#include "replay_call.h"
#include "replay_state.h"
#include "replay_thread.h"
#include "shortage.h"

namespace smartswap::replay {

namespace {

class UnderSettings {
 public:
  explicit UnderSettings(const Settings& settings)
      : settings_(settings),
        before_(Settings::now()),
        autocast_type_(at::autocast::get_autocast_dtype(attached().type)),
        autocast_caches_(at::autocast::is_autocast_cache_enabled()) {
    settings.apply(before_);
    if (settings.autocast) {
      at::autocast::set_autocast_dtype(attached().type, settings.autocast_type);
    }
    // It would keep tensors of this call for later ones.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~UnderSettings() {
    before_.apply(settings_);
    at::autocast::set_autocast_dtype(attached().type, autocast_type_);
    at::autocast::set_autocast_cache_enabled(autocast_caches_);
  }
  UnderSettings(const UnderSettings&) = delete;
  UnderSettings& operator=(const UnderSettings&) = delete;

 private:
  const Settings& settings_;
  const Settings before_;
  at::ScalarType autocast_type_;
  bool autocast_caches_;
};

at::Tensor bytes_at(char* memory, size_t size_bytes, c10::Device device) {
  View bytes;
  bytes.size_bytes = size_bytes;
  bytes.sizes = {static_cast<int64_t>(size_bytes)};
  bytes.strides = {1};
  bytes.type = at::kByte;
  bytes.device = device;
  return bytes.at(memory);
}

// The arguments as they were, on a stack.
class Stack {
 public:
  Stack(const Call& call, const Copies& copies, const Output* output)
      : copies_(copies), output_(output) {
    values_.reserve(call.arguments.size());
    for (const auto& argument : call.arguments) {
      values_.push_back(value_of(argument));
    }
  }

  torch::jit::Stack take() {
    return std::move(values_);
  }

 private:
  c10::IValue value_of(const Argument& argument) {
    if (const auto* view = std::get_if<View>(&argument.value)) {
      return tensor_of(*view);
    }
    const auto* list = std::get_if<List>(&argument.value);
    if (list == nullptr) {
      return std::get<c10::IValue>(argument.value);
    }
    return list->has_optional ? optional_tensors(*list) : tensors(*list);
  }

  at::Tensor tensor_of(const View& view) {
    if (view.use == Use::changed && view.memory != nullptr) {
      scratch_.emplace_back();
      return view.at(copy_of(view, scratch_.back()));
    }
    for (const auto& [memory, copy] : copies_) {
      if (memory == view.memory) {
        return view.at(copy);
      }
    }
    // Its other outputs may hold something else by now.
    const bool is_spare = output_ != nullptr && output_->memory != view.memory;
    if (view.use == Use::written && is_spare && view.memory != nullptr) {
      scratch_.emplace_back();
      return view.at(scratch_for(view, scratch_.back()));
    }
    return view.at(view.memory);
  }

  c10::IValue tensors(const List& list) {
    c10::List<at::Tensor> made;
    for (const auto& element : list.elements) {
      made.push_back(value_of(element).toTensor());
    }
    return made;
  }

  c10::IValue optional_tensors(const List& list) {
    c10::List<std::optional<at::Tensor>> made;
    for (const auto& element : list.elements) {
      const auto value = value_of(element);
      made.push_back(value.isTensor() ? std::optional(value.toTensor()) : std::nullopt);
    }
    return made;
  }

  const Copies& copies_;
  const Output* output_;
  std::vector<at::Tensor> scratch_;
  torch::jit::Stack values_;
};

// The output may have come to lie elsewhere, where the call allocates in another order than the
// first time. But then nobody may have kept the memory that was meant for it.
void check_target(const Output& output, const std::vector<at::Tensor>& results) {
  TORCH_CHECK(*output.place < results.size(), "it made fewer tensors");
  const auto& result = results[*output.place];
  TORCH_CHECK(result.storage().nbytes() == output.size_bytes, "it made a tensor of another size");
  const bool is_there = memory_of(result) == output.memory;
  TORCH_CHECK(
      is_there || thread().handed_out == nullptr, "a library keeps the memory of its output");
}

const std::string& name_of(const Work& work) {
  static const std::string unnamed = "a kernel";
  const auto* op = std::get_if<c10::OperatorHandle>(&work);
  return op == nullptr ? unnamed : op->schema().name();
}

std::vector<at::Tensor> call_again(
    const Call& call, const Copies& copies, const Output* output = nullptr) {
  const Alone alone(call.settings.autocast);
  const UnderSettings settings(call.settings);
  const c10::StreamGuard stream(*call.stream);
  const shortage::OfAnother room;
  Stack arguments(call, copies, output);
  auto stack = arguments.take();
  if (const auto* launch = std::get_if<Launch>(&call.work)) {
    (*launch)(std::move(stack));
    room.check(name_of(call.work));
    return {};
  }
  std::optional<DrawingFrom> drawing;
  if (call.state) {
    drawing.emplace(*call.state);
  }
  const bool is_allocated = output != nullptr && output->place;
  const Target target(is_allocated ? output : nullptr);
  std::get<c10::OperatorHandle>(call.work).callBoxed(stack);
  room.check(name_of(call.work));
  auto results = tensors_in(stack);
  if (is_allocated) {
    check_target(*output, results);
  }
  return results;
}

}  // namespace

char* scratch_for(const View& view, at::Tensor& owner) {
  constexpr size_t alignment = 64;
  const Alone alone;
  const size_t size_bytes = view.size_bytes;
  const auto options = at::TensorOptions().dtype(at::kByte).device(view.device);
  owner = at::empty({static_cast<int64_t>(size_bytes + alignment)}, options);
  auto* memory = static_cast<char*>(owner.data_ptr());
  // Aligned as the original is.
  const auto place = [](const char* at) { return reinterpret_cast<uintptr_t>(at) % alignment; };
  return memory + (place(view.memory) + alignment - place(memory)) % alignment;
}

char* copy_of(const View& view, at::Tensor& owner) {
  char* memory = scratch_for(view, owner);
  const Alone alone;
  const auto bytes = [&](char* at) { return bytes_at(at, view.size_bytes, view.device); };
  bytes(memory).copy_(bytes(view.memory));
  return memory;
}

void invert(const View& view, char* memory) {
  const Alone alone;
  bytes_at(memory, view.size_bytes, view.device).bitwise_not_();
}

std::vector<at::Tensor> run(const Call& call, const Copies& copies) {
  return call_again(call, copies);
}

void bring_back(const Call& call, const Output& output) {
  const auto results = call_again(call, {}, &output);
  if (!output.place) {
    return;
  }
  auto* made = memory_of(results[*output.place]);
  if (made == output.memory) {
    return;
  }
  const Alone alone;
  const c10::StreamGuard stream(*call.stream);
  const auto device = results[*output.place].device();
  bytes_at(output.memory, output.size_bytes, device)
      .copy_(bytes_at(made, output.size_bytes, device));
}

bool same_bytes(const View& view, char* one, char* other) {
  const Alone alone;
  View bits = view;
  bits.requires_grad = bits.is_conj = bits.is_neg = bits.is_number = false;
  switch (c10::elementSize(view.type)) {
    case 1:
      bits.type = at::kByte;
      break;
    case 2:
      bits.type = at::kShort;
      break;
    case 4:
      bits.type = at::kInt;
      break;
    case 8:
      bits.type = at::kLong;
      break;
    default:
      bits.type = at::kLong;
      bits.npu_layout.reset();
      bits.offset *= 2;
      for (auto& stride : bits.strides) {
        stride *= 2;
      }
      bits.sizes.push_back(2);
      bits.strides.push_back(1);
  }
  return at::equal(bits.at(one), bits.at(other));
}

}  // namespace smartswap::replay
