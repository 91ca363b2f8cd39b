// The dispatcher observer: begin, touches and end for every operator, by at::RecordFunction.
#include "observer.h"

#include <Python.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "deferred.h"
#include "engine.h"
#include "graphs.h"
#include "operators.h"
#include "outside.h"
#include "refusal.h"
#include "replay.h"
#include "seals.h"
#include "shortage.h"
#include "step_bounds.h"
#include "tensors.h"

namespace smartswap::observer {

namespace {

// Threads that use the engine and do not train.
std::atomic<int> others{0};

// What belongs to one thread.
struct Thread {
  Thread() {
    ++others;
  }
  ~Thread() {
    others -= trains ? 0 : 1;
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void begin_to_train() {
    others -= trains ? 0 : 1;
    trains = true;
  }

  // Operators that run now, outermost first, and whether they are the engine's ops.
  std::vector<std::pair<const Operator*, bool>> running;
  // Those of them that are the engine's ops: the outermost one, and all inside it.
  size_t depth = 0;
  // What it takes to watch those that the outermost of these has called so far: 1 for each, and as
  // much again where it uses memory.
  uint32_t watching_inside = 0;
  // The operator that runs has told all that it uses, so what it calls is not watched.
  bool looks_away = false;
  // It ends the training's steps, or runs nodes of a backward pass. What other threads run, such
  // as a communication library's, comes at any time: it is beside the step.
  bool trains = false;
  Aside aside = Aside::automatic;
  // Ops that who is no operator has announced while the stream captures: they are none.
  size_t captured = 0;
  // The name of the op that was announced last by who is no operator, for seals.
  std::string announced;
  // What the running operator uses, until the engine is told.
  std::vector<smartswap_touched> touched;
  // What the end of an operator met, until it is raised.
  int unraised_code = SMARTSWAP_OK;
  std::string unraised;
};

Thread& thread() {
  static thread_local Thread value;
  return value;
}

std::optional<at::CallbackHandle> handle;
// While one is woken inside a backward pass, perhaps.
std::optional<at::CallbackHandle> node_handle;

// Nobody watches: the model fits.
std::atomic<bool> asleep{false};
// Counts the times that it woke, and those of them after which every running operator was known
// again to be watched.
std::atomic<uint64_t> wakings{0};
std::atomic<uint64_t> settled{0};
std::mutex waking;

void add_touched(Thread& own, const c10::IValue& value, smartswap_access access) {
  visit_storages(value, [&](const c10::Storage& storage) {
    own.touched.push_back({start_of(storage), access});
  });
}

// Tells the engine of what was added since the last time.
int touch_added(Thread& own, bool hold) {
  if (own.touched.empty()) {
    return SMARTSWAP_OK;
  }
  // Memory that is made again calls operators of its own.
  auto touched = std::exchange(own.touched, {});
  int code = smartswap_touch_all(touched.data(), static_cast<uint32_t>(touched.size()));
  for (size_t index = 0; hold && index < touched.size() && code == SMARTSWAP_OK; ++index) {
    code = smartswap_hold(touched[index].address, current_stream(), "a collective");
  }
  touched.clear();
  own.touched = std::move(touched);
  return code;
}

int touch_inputs(Thread& own, const at::RecordFunction& fn, const Operator& op) {
  const auto inputs = fn.inputs();
  for (size_t index = 0; index < inputs.size(); ++index) {
    if (may_have_storages(inputs[index])) {
      add_touched(own, inputs[index], op.use_of(inputs, index));
    }
  }
  return touch_added(own, op.is_collective);
}

bool is_aside(Thread& own) {
  switch (own.aside) {
    case Aside::all:
      return true;
    case Aside::none:
      return false;
    case Aside::automatic:
      break;
  }
  if (!own.trains) {
    // Other threads than the script's train where they run backward passes.
    if (torch::autograd::get_current_node() == nullptr) {
      return true;
    }
    own.begin_to_train();
  }
  return !step_bounds::has_next();
}

// Keeps an operator from running. One that needs no memory may.
std::unique_ptr<Refusal> refuse(
    const at::RecordFunction& fn, const Operator& op, bool begun, int code, std::string text) {
  std::vector<c10::Storage> storages;
  if (!op.is_metadata) {
    for (const auto& input : fn.inputs()) {
      visit_storages(input, [&](const c10::Storage& storage) { storages.push_back(storage); });
    }
  }
  return std::make_unique<Refusal>(begun, code, std::move(text), std::move(storages));
}

// Every operator that began before the last waking has ended.
void settle(uint64_t waking_number) {
  uint64_t before = waking_number - 1;
  if (wakings.load() == waking_number && settled.compare_exchange_strong(before, waking_number)) {
    smartswap_awake();
    const std::lock_guard<std::mutex> guard(waking);
    if (wakings.load() == waking_number && node_handle) {
      at::removeCallback(*std::exchange(node_handle, std::nullopt));
    }
  }
}

// The interpreter's main loop runs this between two steps of Python code, so outside operators.
int settle_from_python(void* number) {
  settle(reinterpret_cast<uintptr_t>(number));
  return 0;
}

// A thread that wakes the engine inside a backward pass is done with its operator when the next
// node begins.
thread_local uint64_t woken_here = 0;

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction&) {
  if (C10_UNLIKELY(woken_here != 0)) {
    settle(std::exchange(woken_here, 0));
  }
  return nullptr;
}

// The operator that allocates now began unwatched. Nothing may be sent away until it has ended,
// nor until those of other threads have: by the end of the step.
void wake() {
  const std::lock_guard<std::mutex> guard(waking);
  if (!asleep.load()) {
    return;
  }
  check(smartswap_wake());
  const uint64_t number = wakings.fetch_add(1) + 1;
  settled.store(number - 1);
  install();
  // Watched no longer than that: this costs each node what an operator does.
  if (!node_handle) {
    node_handle = at::addGlobalCallback(
        at::RecordFunctionCallback(on_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }
  asleep.store(false);
  if (others.load() == 0) {
    woken_here = number;
    Py_AddPendingCall(
        &settle_from_python, reinterpret_cast<void*>(static_cast<uintptr_t>(number)));
  }
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (!attached().active.load(std::memory_order_relaxed) || in_forked_child() ||
      at::in_parallel_region()) {
    return nullptr;
  }
  Thread& own = thread();
  const Operator* op = find_operator(fn);
  if (op == nullptr || op->is_view) {
    return nullptr;
  }
  if (C10_UNLIKELY(graphs::captures())) {
    // What it uses, it uses when its graph runs.
    auto failed = graphs::note(fn, *op);
    return failed ? refuse(fn, *op, /*begun=*/false, failed->code, std::move(failed->text))
                  : nullptr;
  }
  const bool outermost = own.depth == 0;
  if (outermost && calls_others(fn, *op)) {
    own.running.emplace_back(op, false);
    return nullptr;
  }
  if (C10_UNLIKELY(own.unraised_code != SMARTSWAP_OK && !op->is_metadata)) {
    const int code = std::exchange(own.unraised_code, SMARTSWAP_OK);
    return refuse(fn, *op, /*begun=*/false, code, std::move(own.unraised));
  }
  if (C10_UNLIKELY(deferred::count() != 0)) {
    if (auto failed = deferred::run_before(fn)) {
      return refuse(fn, *op, /*begun=*/false, failed->code, std::move(failed->text));
    }
  }
  if (outermost && is_elsewhere(fn, *op)) {
    if (op->draws) {
      replay::note_draw();
    }
    own.running.emplace_back(op, false);
    return nullptr;
  }
  const auto part = outermost && is_aside(own) ? SMARTSWAP_ASIDE : SMARTSWAP_STEP;
  // What operators inside one use, it uses.
  int code =
      outermost ? smartswap_begin(op->name.c_str(), current_stream(), part) : SMARTSWAP_OK;
  const bool begun = code == SMARTSWAP_OK;
  if (begun) {
    own.running.emplace_back(op, true);
    ++own.depth;
    if (outermost) {
      shortage::begin();
    }
    code = op->is_metadata ? SMARTSWAP_OK : touch_inputs(own, fn, *op);
    if (C10_UNLIKELY(seals::watches()) && code == SMARTSWAP_OK) {
      if (outermost) {
        seals::begin();
      }
      seals::use_inputs(fn, *op);
    }
  }
  if (C10_UNLIKELY(code != SMARTSWAP_OK)) {
    auto text =
        "the inputs of " + op->name + " could not be brought back: " + smartswap_last_error();
    return refuse(fn, *op, begun, code, std::move(text));
  }
  if (outermost && op->again && part == SMARTSWAP_STEP &&
      !(op->autocasts && at::autocast::is_autocast_enabled(attached().type))) {
    replay::capture(fn, *op->again, op->unsaid);
  }
  if (op->draws) {
    replay::note_draw();
  }
  own.watching_inside = outermost ? 0 : own.watching_inside + (op->is_metadata ? 1 : 2);
  if (outermost && op->is_long_inside && !seals::watches() && tells_all(fn, *op)) {
    own.looks_away = true;
    at::enableRecordFunction(false);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext* context) {
  Thread& own = thread();
  if (own.looks_away) {
    own.looks_away = false;
    at::enableRecordFunction(true);
  }
  if (C10_UNLIKELY(context != nullptr)) {
    const auto* refusal = static_cast<const Refusal*>(context);
    refusal->ended();
    if (!refusal->begun()) {
      return;
    }
  }
  if (C10_UNLIKELY(graphs::captures())) {
    return;
  }
  // Operators that began before the observer did, or while it looked away, are not known.
  if (own.running.empty() || in_forked_child() || at::in_parallel_region() ||
      own.running.back().first->key != fn.name()) {
    return;
  }
  const auto [op, is_op] = own.running.back();
  own.running.pop_back();
  if (!is_op) {
    return;
  }
  --own.depth;
  const bool outermost = own.depth == 0;
  // What an operator inside another makes stays until the other ends, and may be its workspace.
  if ((outermost || op->is_collective) && (!op->returns_inputs || op->is_metadata)) {
    for (const c10::IValue& output : fn.outputs()) {
      add_touched(own, output, SMARTSWAP_OUTPUT);
    }
    // A fresh block is resident: this cannot fail for want of memory.
    touch_added(own, op->is_collective);
  }
  if (C10_UNLIKELY(seals::watches())) {
    seals::use_outputs(fn, *op);
  }
  if (!outermost) {
    return;
  }
  // To look away and back takes longer than to watch one that uses no memory. For good, so that
  // recorded steps know the same of the same calls.
  op->is_long_inside = op->is_long_inside || own.watching_inside > 1;
  const bool went_without = shortage::end(op->name);
  const bool may_offer = op->again.has_value();
  if (may_offer && C10_UNLIKELY(went_without)) {
    replay::distrust();
  } else if (may_offer) {
    replay::offer(fn);
  }
  if (C10_UNLIKELY(seals::watches())) {
    seals::end(op->name);
  }
  if (smartswap_end() != SMARTSWAP_OK && own.unraised_code == SMARTSWAP_OK) {
    own.unraised_code = SMARTSWAP_BROKEN;
    own.unraised = "the end of " + op->name + ": " + smartswap_last_error();
  }
  if (may_offer) {
    replay::prove(fn);
  }
}

}  // namespace

void install() {
  if (handle) {
    return;
  }
  handle = at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
}

void remove() {
  const std::lock_guard<std::mutex> guard(waking);
  for (auto* one : {&handle, &node_handle}) {
    if (*one) {
      at::removeCallback(**one);
      one->reset();
    }
  }
}

void set_aside(Aside mode) {
  thread().aside = mode;
}

void train_here() {
  thread().begin_to_train();
}

void step_ended() {
  train_here();
  step_bounds::end_step();
  settle(wakings.load());
}

void begin(const char* name) {
  Thread& own = thread();
  if (C10_UNLIKELY(graphs::captures())) {
    ++own.captured;
    return;
  }
  const auto part = smartswap_depth() == 0 && is_aside(own) ? SMARTSWAP_ASIDE : SMARTSWAP_STEP;
  check(smartswap_begin(name, current_stream(), part));
  if (C10_UNLIKELY(seals::watches())) {
    own.announced = name;
    seals::begin();
  }
}

void touch(const at::Tensor& tensor, smartswap_access access) {
  if (C10_UNLIKELY(graphs::captures())) {
    visit_storages(tensor, [&](const c10::Storage& storage) {
      graphs::note({{start_of(storage), access}});
    });
    return;
  }
  deferred::run_before(tensor);
  visit_storages(tensor, [&](const c10::Storage& storage) {
    check(smartswap_touch(start_of(storage), access));
    if (C10_UNLIKELY(seals::watches())) {
      seals::use(storage, access, thread().announced);
    }
  });
}

bool is_in_captured_op() {
  return thread().captured > 0;
}

void end() {
  if (C10_UNLIKELY(is_in_captured_op())) {
    return abandon();
  }
  if (C10_UNLIKELY(seals::watches())) {
    seals::end(thread().announced);
  }
  check(smartswap_end());
}

void abandon() {
  if (is_in_captured_op()) {
    --thread().captured;
  } else {
    smartswap_end();
  }
}

void sleep_if_calm() {
  const bool may = !asleep.load(std::memory_order_relaxed) && !seals::watches() &&
      !outside::anywhere() && deferred::count() == 0 && smartswap_may_sleep() != 0;
  if (may && smartswap_sleep() == SMARTSWAP_OK) {
    asleep.store(true);
    remove();
  }
}

void watch_again() {
  wake();
  settle(wakings.load());
}

bool knows_all() {
  return !asleep.load(std::memory_order_relaxed) && settled.load() == wakings.load();
}

void before_allocation(uint64_t size_bytes) {
  Thread& own = thread();
  if (C10_UNLIKELY(asleep.load(std::memory_order_relaxed)) &&
      smartswap_should_wake(size_bytes) != 0) {
    wake();
  }
  if (const auto* refusal = Refusal::current(); C10_UNLIKELY(refusal != nullptr)) {
    refusal->raise();
  }
  if (C10_UNLIKELY(own.unraised_code != SMARTSWAP_OK)) {
    raise(std::exchange(own.unraised_code, SMARTSWAP_OK), std::exchange(own.unraised, {}));
  }
}

}  // namespace smartswap::observer
