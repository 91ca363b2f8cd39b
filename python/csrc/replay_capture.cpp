// Keeps calls of operators while they run, and tells the engine which it can make again.
#include <ATen/Context.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>

#include "engine.h"
#include "replay_call.h"
#include "replay_state.h"
#include "replay_thread.h"
#include "seals.h"

namespace smartswap::replay {

namespace {

// Above it no more calls are kept.
constexpr uint64_t kKeptBytesMax = uint64_t{64} << 20;

struct Counts {
  std::atomic<uint64_t> kept_calls{0};
  std::atomic<uint64_t> kept_bytes{0};
  std::atomic<uint64_t> offered{0};
  std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> keeping_ns{0};
  std::atomic<bool> drops{false};
  std::mutex lock;
  // By the place of the text.
  std::map<const char*, uint64_t> refused;
};

Counts& counts() {
  static Counts value;
  return value;
}

// Counts the host's time while it lives.
class Keeping {
 public:
  Keeping() = default;
  Keeping(const Keeping&) = delete;
  Keeping& operator=(const Keeping&) = delete;
  ~Keeping() {
    const auto spent = std::chrono::steady_clock::now() - begun_;
    counts().keeping_ns += std::chrono::nanoseconds(spent).count();
  }

 private:
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

// Whether operators of this thread go straight to their kernels.
bool is_plain_thread() {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return (keys.included_ - c10::default_included_set).empty();
}

// What is made of far smaller tensors is small as well, but for a few that are not worth the
// trouble. What is made of none may be of any size.
bool may_be_large(c10::ArrayRef<const c10::IValue> inputs) {
  constexpr uint64_t growth = 16;
  bool has_tensors = false;
  const auto is_large = [&](const at::Tensor& tensor) {
    has_tensors = true;
    // A compiler traces with tensors whose sizes are unknown, and which have no memory.
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      return false;
    }
    // What is sparse has no one size; how large it is, is not worth the asking.
    return !tensor.has_storage() || growth * tensor.nbytes() >= attached().least_bytes;
  };
  for (const auto& input : inputs) {
    if (input.isTensor() ? is_large(input.toTensor())
                         : input.isTensorList() || input.isOptionalTensorList()) {
      return true;
    }
  }
  return !has_tensors;
}

// The arguments that the call writes and the engine moves.
std::vector<Output> written_arguments(Call& call) {
  std::vector<Output> outputs;
  visit_views(call.arguments, [&](const View& view) {
    if (view.use == Use::written && smartswap_moves(view.memory) != 0) {
      outputs.push_back({view.memory, view.size_bytes, std::nullopt});
    }
  });
  return outputs;
}

// Adds the outputs that the captured call allocated and the engine moves.
void find_outputs(const std::vector<at::Tensor>& results, std::vector<Output>& outputs) {
  const auto& allocated = thread().allocated;
  for (size_t place = 0; place < results.size(); ++place) {
    if (!results[place].defined() || !results[place].has_storage()) {
      continue;
    }
    void* memory = memory_of(results[place]);
    const auto found =
        std::find_if(allocated.rbegin(), allocated.rend(), [&](const auto& allocation) {
          return allocation.first == memory;
        });
    const bool is_known = std::any_of(outputs.begin(), outputs.end(), [&](const Output& output) {
      return output.memory == memory;
    });
    if (memory == nullptr || found == allocated.rend() || is_known ||
        smartswap_moves(memory) == 0) {
      continue;
    }
    const uint64_t size_bytes = found->second;
    const auto turn = std::count_if(found + 1, allocated.rend(), [&](const auto& allocation) {
      return allocation.second == size_bytes;
    });
    outputs.push_back(
        {static_cast<char*>(memory), size_bytes, place, static_cast<size_t>(turn)});
  }
}

// Whether the arguments that the call was to write are still the memory that it returned: it gives
// one of another shape other memory.
bool has_kept_arguments(Call& call, const std::vector<at::Tensor>& results) {
  bool all = true;
  visit_views(call.arguments, [&](const View& view) {
    const auto is_it = [&](const at::Tensor& result) {
      return result.defined() && result.has_storage() && memory_of(result) == view.memory;
    };
    all = all && (view.use != Use::written || std::any_of(results.begin(), results.end(), is_it));
  });
  return all;
}

int run_for_engine(void* data, void* memory, char* why, uint64_t why_bytes) {
  const auto& call = *static_cast<Call*>(data);
  ++counts().runs;
  try {
    for (const auto& output : call.outputs) {
      if (output.memory == memory) {
        bring_back(call, output);
        return 0;
      }
    }
  } catch (const c10::Error& error) {
    std::snprintf(why, why_bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(why, why_bytes, "%s", error.what());
  } catch (...) {
  }
  return 1;
}

void release(void* data) {
  const Keeping keeping;
  const auto* call = static_cast<Call*>(data);
  --counts().kept_calls;
  counts().kept_bytes -= call->held_bytes();
  delete call;
}

void offer_call(Call&& made, bool at_any_size) {
  auto* call = new Call(std::move(made));
  ++counts().kept_calls;
  counts().kept_bytes += call->held_bytes();
  std::vector<const void*> outputs;
  for (const auto& output : call->outputs) {
    outputs.push_back(output.memory);
  }
  const auto count = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  const auto small = std::move(call->small);
  const smartswap_replay replay = {
      &run_for_engine, &release,     call, outputs.data(), count(outputs),
      small.data(),    count(small), at_any_size,
  };
  if (smartswap_offer_replay(&replay) != SMARTSWAP_OK) {
    return refuse("it writes or reads other memory");
  }
  ++counts().offered;
  if (C10_UNLIKELY(counts().drops.load(std::memory_order_relaxed))) {
    for (const void* memory : outputs) {
      thread().to_drop.push_back(const_cast<void*>(memory));
    }
  }
}

}  // namespace

Thread& thread() {
  static thread_local Thread value;
  return value;
}

void refuse(const char* why) {
  const std::lock_guard<std::mutex> guard(counts().lock);
  ++counts().refused[why];
}

c10::Stream stream_now() {
  const auto& owner = attached();
  return c10::impl::VirtualGuardImpl(owner.type).getStream({owner.type, owner.index});
}

void add_settings(const Settings& settings, std::string& kind) {
  kind.push_back(static_cast<char>(
      settings.gradients | settings.deterministic << 1 | settings.deterministic_warns << 2 |
      settings.autocast << 3));
  kind.push_back(static_cast<char>(settings.autocast_type));
  kind.push_back(static_cast<char>(settings.default_type));
  for (const int precision : settings.precisions) {
    kind.push_back(static_cast<char>(precision));
  }
  kind += std::to_string(settings.threads);
}

const char* hindrance() {
  if (!is_plain_thread()) {
    return "a thread that does not call kernels straight";
  }
  const bool is_full = counts().kept_bytes.load(std::memory_order_relaxed) > kKeptBytesMax;
  return is_full ? "enough is kept" : nullptr;
}

uint64_t Call::held_bytes() const {
  uint64_t bytes = sizeof(Call) + arguments.size() * sizeof(Argument);
  for (const auto& argument : arguments) {
    if (const auto* view = std::get_if<View>(&argument.value)) {
      bytes += view->bytes ? view->size_bytes : 0;
    } else if (const auto* list = std::get_if<List>(&argument.value)) {
      bytes += list->elements.size() * sizeof(Argument);
    }
  }
  return bytes + (state && state->engine ? sizeof(*state->engine) : 0);
}

std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& results) {
  std::vector<at::Tensor> all;
  for (const auto& result : results) {
    if (result.isTensor()) {
      all.push_back(result.toTensor());
    } else if (result.isTensorList()) {
      for (const auto& element : result.toListRef()) {
        all.push_back(element.toTensor());
      }
    }
  }
  return all;
}

void capture(const at::RecordFunction& fn, const Candidate& op, const Unsaid& unsaid) {
  auto& own = thread();
  own.captured.reset();
  own.unproven.reset();
  const int use = smartswap_replay_use();
  if (C10_LIKELY(use == SMARTSWAP_UNUSED)) {
    return;
  }
  const Keeping keeping;
  if (use == SMARTSWAP_RECORDED_FOR_SIZES && !op.is_pointwise) {
    return;
  }
  if (!may_be_large(fn.inputs())) {
    return;
  }
  if (const char* why = hindrance()) {
    return refuse(why);
  }
  const auto settings = Settings::now();
  if (op.adds_in_any_order && !settings.deterministic) {
    return refuse("an operator that adds in any order");
  }
  auto& captured = own.captured.emplace(op.op);
  auto& call = captured.call;
  // The schema of an overload lies in one place.
  const void* schema = &op.op.schema();
  captured.kind.assign(reinterpret_cast<const char*>(&schema), sizeof(schema));
  Arguments arguments{call.arguments, call.small, captured.kind};
  const auto use_of = [&](size_t index) {
    if (index < op.results.size() && op.results[index]) {
      return Use::written;
    }
    return unsaid.changes(fn.inputs(), index) ? Use::changed : Use::read;
  };
  const Reading reading{op.reads_shapes, op.masks_size_outputs};
  if (const char* why = keep_arguments(fn.inputs(), reading, use_of, arguments)) {
    own.captured.reset();
    return refuse(why);
  }
  call.settings = settings;
  call.stream = stream_now();
  add_settings(settings, captured.kind);
  captured.is_recorded = use != SMARTSWAP_PLANNED;
  captured.at_any_size = op.is_pointwise ? fn.name() : "";
  if (op.draws) {
    call.state = State::of(generator_of(fn.inputs()));
    captured.draws_of_others = draws_of_others();
  }
  own.allocated.clear();
}

void offer(const at::RecordFunction& fn) {
  auto& own = thread();
  if (!own.captured) {
    return;
  }
  const Keeping keeping;
  const auto results = tensors_in(fn.outputs());
  auto& call = own.captured->call;
  if (!has_kept_arguments(call, results)) {
    own.captured.reset();
    return refuse("an output that became larger");
  }
  find_outputs(results, call.outputs);
  offer_captured();
}

void offer_captured() {
  auto& own = thread();
  Captured captured = std::move(*own.captured);
  own.captured.reset();
  auto& call = captured.call;
  const auto written = written_arguments(call);
  call.outputs.insert(call.outputs.end(), written.begin(), written.end());
  if (call.outputs.empty()) {
    return;
  }
  if (call.state && draws_of_others() != captured.draws_of_others) {
    return refuse("another thread drew numbers meanwhile");
  }
  switch (trust_in(captured)) {
    case Trust::sure:
      return offer_call(std::move(call), !captured.at_any_size.empty());
    case Trust::unsure:
      return refuse("a kind that gave other bits when it was run again, or went without memory");
    case Trust::unknown:
      if (captured.is_recorded) {
        own.unproven = std::move(captured);
      }
  }
}

void drop_marked() {
  auto& own = thread();
  for (void* memory : own.to_drop) {
    smartswap_discard(memory);
  }
  own.to_drop.clear();
}

void note_allocation(void* memory, uint64_t size_bytes) {
  seals::renew(memory);
  auto& own = thread();
  if (own.captured) {
    own.allocated.emplace_back(memory, size_bytes);
  }
}

void* take_target(uint64_t size_bytes) {
  auto& own = thread();
  if (C10_LIKELY(own.target == nullptr) || own.target->size_bytes != size_bytes) {
    return nullptr;
  }
  if (own.turns_left > 0) {
    --own.turns_left;
    return nullptr;
  }
  own.handed_out = std::exchange(own.target, nullptr)->memory;
  return own.handed_out;
}

void keep(void* memory) {
  auto& own = thread();
  if (own.handed_out == memory) {
    own.handed_out = nullptr;
  }
}

void drop_at_once(bool on) {
  counts().drops.store(on);
}

Report report() {
  Report report;
  auto& all = counts();
  report.kept_calls = all.kept_calls;
  report.kept_bytes = all.kept_bytes;
  report.offered = all.offered;
  report.runs = all.runs;
  report.keeping_us = static_cast<double>(all.keeping_ns) / 1e3;
  add_trust(report);
  const std::lock_guard<std::mutex> guard(all.lock);
  for (const auto& [why, count] : all.refused) {
    report.refused.emplace_back(why, count);
  }
  return report;
}

}  // namespace smartswap::replay
