// Which kinds of calls give the same bits each time, as found by running them twice.
#include <c10/core/Event.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "engine.h"
#include "replay_call.h"
#include "replay_state.h"
#include "replay_thread.h"

namespace smartswap::replay {

namespace {

// Kinds that are remembered: a model has a few hundred.
constexpr size_t kKindsMax = 1 << 16;

struct Known {
  std::mutex lock;
  std::unordered_map<std::string, Trust> kinds;
  std::set<std::string> unsure;
  // Operators of which it is enough that one of their kinds is sure.
  std::set<std::string> sure_at_any_size;
  // Kinds for which there was no room to run them twice: each try moves others out of the way.
  std::set<std::string> too_large;
  // The end of a second run that the device did not come to in time. Until it does, no call is run
  // twice.
  std::optional<c10::Event> held_up;
};

// Never destroyed: the device may be gone by then, and with it its events.
Known& known() {
  static auto& value = *new Known();
  return value;
}

void learn(const Captured& captured, Trust trust, const std::string& name) {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  all.kinds[captured.kind] = trust;
  if (trust == Trust::unsure) {
    all.unsure.insert(name);
  } else if (!captured.at_any_size.empty()) {
    all.sure_at_any_size.insert(captured.at_any_size);
  }
}

bool is_too_large(const std::string& kind) {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  return all.too_large.count(kind) != 0;
}

void note_too_large(const std::string& kind) {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  all.too_large.insert(kind);
}

bool is_held_up() {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  if (all.held_up && all.held_up->query()) {
    all.held_up.reset();
  }
  return all.held_up.has_value();
}

// Waits for what is on the stream, and returns whether the device has done it in time. The host
// must not wait longer: the stream may be behind a collective that needs what it does next.
bool is_done_soon(const c10::Stream& stream) {
  constexpr auto patience = std::chrono::seconds(1);
  if (stream.device_type() == c10::kCPU) {
    return true;
  }
  c10::Event end(stream.device_type());
  end.record(stream);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!end.query()) {
    if (std::chrono::steady_clock::now() > deadline) {
      auto& all = known();
      const std::lock_guard<std::mutex> guard(all.lock);
      all.held_up = std::move(end);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

// Memory for the arguments of the second run: copies of the small inputs, which an operator that
// breaks its word changes instead of them, and for what it writes the bytes of the first run, each
// bit turned around, so that none of them is right unless it is written again.
class SecondArguments {
 public:
  explicit SecondArguments(Call& call) {
    visit_views(call.arguments, [this](const View& view) {
      const bool is_small = view.use == Use::read && view.size_bytes <= kSmallBytesMax;
      const bool is_written = view.use == Use::written;
      if (view.memory == nullptr || !(is_small || is_written)) {
        return;
      }
      owners_.emplace_back();
      views_.push_back(view);
      copies_.emplace_back(view.memory, copy_of(view, owners_.back()));
      if (is_written) {
        invert(view, copies_.back().second);
      }
    });
  }

  const Copies& copies() const {
    return copies_;
  }

  // Whether inputs are as they were, and what was written is what the first run wrote.
  bool are_as_the_first() const {
    for (size_t index = 0; index < views_.size(); ++index) {
      if (!same_bytes(views_[index], views_[index].memory, copies_[index].second)) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kSmallBytesMax = 1 << 20;

  std::vector<at::Tensor> owners_;
  std::vector<View> views_;
  Copies copies_;
};

bool is_same(const Output& output, const View& first, const std::vector<at::Tensor>& second) {
  if (*output.place >= second.size() || !second[*output.place].defined()) {
    return false;
  }
  const auto& tensor = second[*output.place];
  return tensor.sizes() == c10::IntArrayRef(first.sizes) &&
      tensor.strides() == c10::IntArrayRef(first.strides) &&
      tensor.scalar_type() == first.type && tensor.storage_offset() == first.offset &&
      same_bytes(first, first.memory, memory_of(tensor));
}

// Runs the call again, beside its first outputs, and compares, if the device comes to it in time.
Trust trust_after_another_run(Captured& captured, const std::vector<View>& first) {
  auto& call = captured.call;
  std::vector<State> before;
  std::deque<DrawingFrom> aside;
  for (const auto& generator : default_generators()) {
    before.push_back(State::of(generator));
    aside.emplace_back(before.back());
  }
  const SecondArguments arguments(call);
  const auto second = run(call, arguments.copies());
  // A drawing call has put its generator back. Any other had no business with them.
  bool same = std::all_of(before.begin(), before.end(), [](const State& state) {
    return State::of(state.generator) == state;
  });
  aside.clear();
  if (same && !is_done_soon(*call.stream)) {
    return Trust::unknown;
  }
  same = same && arguments.are_as_the_first();
  for (const auto& output : call.outputs) {
    same = same && (!output.place || is_same(output, first[*output.place], second));
  }
  return same ? Trust::sure : Trust::unsure;
}

// Whether there is room for all of it twice.
bool fits_twice(Call& call) {
  uint64_t size_bytes = 0;
  for (const auto& [memory, bytes] : thread().allocated) {
    size_bytes += 2 * bytes;
  }
  visit_views(call.arguments, [&](const View& view) {
    size_bytes += view.use == Use::written ? 2 * view.size_bytes : view.size_bytes;
  });
  smartswap_stats now = {};
  now.struct_size = sizeof(now);
  // The largest operators are those worth most, so most of the memory may be cleared for them.
  return smartswap_get_stats(&now) == SMARTSWAP_OK &&
      size_bytes <= now.limit_bytes - now.limit_bytes / 4;
}

bool touch_all(Call& call) {
  int code = SMARTSWAP_OK;
  const auto touch = [&](const void* memory) {
    code = code == SMARTSWAP_OK ? smartswap_touch(memory, SMARTSWAP_READ) : code;
  };
  visit_views(call.arguments, [&](const View& view) {
    if (view.memory != nullptr && view.bytes == nullptr) {
      touch(view.memory);
    }
  });
  for (const auto& output : call.outputs) {
    touch(output.memory);
  }
  return code == SMARTSWAP_OK;
}

}  // namespace

Trust trust_in(const Captured& captured) {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  const auto found = all.kinds.find(captured.kind);
  if (found != all.kinds.end()) {
    return found->second;
  }
  const auto& name = captured.at_any_size;
  const bool is_sure = all.sure_at_any_size.count(name) != 0 && all.unsure.count(name) == 0;
  return is_sure ? Trust::sure : Trust::unknown;
}

bool can_learn() {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  return all.kinds.size() < kKindsMax;
}

void add_trust(Report& report) {
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  for (const auto& [kind, trust] : all.kinds) {
    report.sure_kinds += trust == Trust::sure ? 1 : 0;
  }
  report.unsure.assign(all.unsure.begin(), all.unsure.end());
}

void distrust() {
  auto& own = thread();
  if (!own.captured) {
    return;
  }
  auto& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  all.kinds[own.captured->kind] = Trust::unsure;
  own.captured.reset();
}

void prove(const at::RecordFunction& fn) {
  std::vector<View> first;
  if (C10_UNLIKELY(thread().unproven.has_value())) {
    for (const auto& tensor : tensors_in(fn.outputs())) {
      first.push_back(tensor.defined() && tensor.has_storage() ? view_of(tensor) : View());
    }
  }
  prove(fn.name(), first);
}

void prove(const std::string& name, const std::vector<View>& first) {
  auto& own = thread();
  drop_marked();
  if (C10_LIKELY(!own.unproven)) {
    return;
  }
  Captured captured = std::move(*own.unproven);
  own.unproven.reset();
  auto& call = captured.call;
  if (!can_learn() || is_too_large(captured.kind) || !fits_twice(call) || is_held_up()) {
    return;
  }
  if (smartswap_begin("smartswap::run_again", current_stream(), SMARTSWAP_ASIDE) != SMARTSWAP_OK) {
    return;
  }
  Trust trust = Trust::unknown;
  try {
    if (touch_all(call)) {
      trust = trust_after_another_run(captured, first);
    }
  } catch (const c10::OutOfMemoryError&) {
    note_too_large(captured.kind);
  } catch (...) {
    trust = Trust::unsure;
  }
  smartswap_end();
  if (trust != Trust::unknown) {
    learn(captured, trust, name);
  }
}

}  // namespace smartswap::replay
