// The dispatcher observer: begin, touches and end for every operator, by at::RecordFunction.
#include "observer.h"

#include <Python.h>

#include <ATen/Parallel.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "replay.h"

namespace smartswap::observer {

namespace {

// What there is to know about an operator before its first run.
struct Operator {
  std::string name;
  // A dispatcher operator. Ranges of profilers and Python functions are not.
  bool is_operator = false;
  // It reads or makes what tensors are, not what is in them: views, and empty_like.
  bool is_metadata = false;
  // Its work outlives it, on streams of its own.
  bool is_collective = false;
  // All that it returns is among its inputs, so it need not allocate.
  bool returns_inputs = false;
  // How to call it, if it may be called again to make its output again.
  std::optional<c10::OperatorHandle> again;
  // By argument: whether it is written.
  std::vector<bool> writes;
};

// Operators that look at the shape of a tensor alone, although their schema does not say so.
bool looks_at_shape(std::string_view name) {
  static constexpr std::string_view names[] = {
      "aten::empty_like", "aten::zeros_like",   "aten::ones_like",   "aten::full_like",
      "aten::rand_like",  "aten::randn_like",   "aten::randint_like", "aten::new_empty",
      "aten::new_zeros",  "aten::new_ones",     "aten::new_full",    "aten::new_empty_strided",
      "aten::is_same_size", "aten::result_type", "aten::record_stream", "aten::can_cast"};
  for (const auto known : names) {
    if (name == known) {
      return true;
    }
  }
  return false;
}

Operator describe(const at::RecordFunction& fn) {
  Operator made;
  made.name = fn.name();
  const auto schema = fn.operator_schema();
  if (!schema) {
    return made;
  }
  made.is_operator = true;
  made.is_collective = made.name.rfind("c10d::", 0) == 0 ||
      made.name.rfind("_c10d_functional::", 0) == 0 ||
      made.name.rfind("c10d_functional::", 0) == 0;
  for (const auto& argument : schema->arguments()) {
    made.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
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
  made.is_metadata = looks_at_shape(made.name) || (aliases && writes_none);
  if (writes_none && !aliases && replay::is_cheap_and_sure(fn.name())) {
    made.again = c10::Dispatcher::singleton().findSchema(*fn.operator_name());
  }
  return made;
}

// What belongs to one thread.
struct Thread {
  std::unordered_map<const char*, std::unique_ptr<Operator>> operators;
  // Operators that run now, outermost first.
  std::vector<const Operator*> running;
  // It ends the training's steps, or runs nodes of a backward pass. What other threads run, such
  // as a communication library's, comes at any time: it is beside the step.
  bool trains = false;
  Aside aside = Aside::automatic;
  int pending_code = SMARTSWAP_OK;
  std::string pending;
};

Thread& thread() {
  static thread_local Thread value;
  return value;
}

std::atomic<bool> step_has_begun{false};
std::optional<at::CallbackHandle> handle;

// Nobody watches: the model fits.
std::atomic<bool> asleep{false};
// Counts the times that it woke, and those of them after which every running operator was known
// again to be watched.
std::atomic<uint64_t> wakings{0};
std::atomic<uint64_t> settled{0};
std::mutex waking;

const Operator* find(Thread& own, const at::RecordFunction& fn) {
  // An operator's name lies in its schema, so each overload has a place of its own.
  const char* name = fn.name();
  auto& entry = own.operators[name];
  if (entry == nullptr || std::strcmp(entry->name.c_str(), name) != 0) {
    entry = std::make_unique<Operator>(describe(fn));
  }
  return entry.get();
}

// The start of the memory behind a tensor of the engine's device; nothing for others.
const void* memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) {
    return nullptr;
  }
  const auto& owner = attached();
  const auto device = tensor.device();
  if (device.type() != owner.type ||
      (owner.type != c10::DeviceType::CPU && device.index() != owner.index)) {
    return nullptr;
  }
  auto* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return storage == nullptr ? nullptr : storage->_mutable_data_ptr_no_checks().get();
}

int touch_memory(const at::Tensor& tensor, smartswap_access access, bool hold) {
  const void* memory = memory_of(tensor);
  if (memory == nullptr) {
    return SMARTSWAP_OK;
  }
  const int code = smartswap_touch(memory, access);
  return code == SMARTSWAP_OK && hold ? smartswap_hold(memory) : code;
}

int touch_value(const c10::IValue& value, smartswap_access access, bool hold) {
  if (value.isTensor()) {
    return touch_memory(value.toTensor(), access, hold);
  }
  int code = SMARTSWAP_OK;
  if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && code == SMARTSWAP_OK) {
        code = touch_memory(element.toTensor(), access, hold);
      }
    }
  } else if (value.isList() && value.type()->kind() == c10::TypeKind::ListType &&
             value.toList().elementType()->kind() == c10::TypeKind::ListType) {
    // Collectives take lists of lists of tensors.
    for (const c10::IValue& element : value.toListRef()) {
      if (code == SMARTSWAP_OK) {
        code = touch_value(element, access, hold);
      }
    }
  }
  return code;
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
    return true;
  }
  if (step_has_begun.load(std::memory_order_relaxed)) {
    return false;
  }
  if (!at::GradMode::is_enabled()) {
    return true;
  }
  step_has_begun.store(true, std::memory_order_relaxed);
  return false;
}

// Keeps a failure for the operator's next allocation.
void note_failure(Thread& own, const Operator& op, int code) {
  own.pending_code = code;
  own.pending = "the inputs of " + op.name + " could not be brought back: " +
      smartswap_last_error();
  if (op.returns_inputs) {
    // It may not allocate at all, and would then work on memory that is not there.
    std::fprintf(stderr, "SmartSwap: %s\n", own.pending.c_str());
    std::fflush(stderr);
  }
}

// Every operator that began before the last waking has ended.
void settle(uint64_t waking_number) {
  uint64_t before = waking_number - 1;
  if (wakings.load() == waking_number && settled.compare_exchange_strong(before, waking_number)) {
    smartswap_awake();
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
  thread().trains = true;
  if (C10_UNLIKELY(woken_here != 0)) {
    settle(woken_here);
    woken_here = 0;
  }
  return nullptr;
}

// The operator that allocates now, and maybe those of other threads, began unwatched. Nothing
// may be sent away until they have ended.
void wake() {
  const std::lock_guard<std::mutex> guard(waking);
  if (!asleep.load()) {
    return;
  }
  check(smartswap_wake());
  const uint64_t number = wakings.fetch_add(1) + 1;
  settled.store(number - 1);
  woken_here = number;
  install();
  asleep.store(false);
  Py_AddPendingCall(&settle_from_python, reinterpret_cast<void*>(static_cast<uintptr_t>(number)));
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    return on_node(fn);
  }
  if (!attached().active.load(std::memory_order_relaxed) || in_forked_child() ||
      at::in_parallel_region()) {
    return nullptr;
  }
  Thread& own = thread();
  const Operator* op = find(own, fn);
  if (!op->is_operator) {
    return nullptr;
  }
  const auto part = own.running.empty() && is_aside(own) ? SMARTSWAP_ASIDE : SMARTSWAP_STEP;
  int code = smartswap_begin(op->name.c_str(), current_stream(), part);
  if (code != SMARTSWAP_OK) {
    note_failure(own, *op, code);
    return nullptr;
  }
  own.running.push_back(op);
  const bool outermost = own.running.size() == 1;
  if (op->is_metadata) {
    return nullptr;
  }
  const auto inputs = fn.inputs();
  for (size_t index = 0; index < inputs.size() && code == SMARTSWAP_OK; ++index) {
    const bool written = index < op->writes.size() && op->writes[index];
    const auto access = written ? SMARTSWAP_READ_WRITE : SMARTSWAP_READ;
    code = touch_value(inputs[index], access, op->is_collective);
  }
  if (code != SMARTSWAP_OK) {
    note_failure(own, *op, code);
  } else if (op->again && outermost && part == SMARTSWAP_STEP) {
    replay::capture(fn, *op->again);
  }
  return nullptr;
}

void on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    return;
  }
  Thread& own = thread();
  // Operators that began before the observer did, or while it looked away, are not known.
  if (own.running.empty() || in_forked_child() || at::in_parallel_region() ||
      std::strcmp(own.running.back()->name.c_str(), fn.name()) != 0) {
    return;
  }
  const Operator* op = own.running.back();
  own.running.pop_back();
  if (!op->returns_inputs || op->is_metadata) {
    for (const c10::IValue& output : fn.outputs()) {
      // A fresh block is resident: this cannot fail for want of memory.
      touch_value(output, SMARTSWAP_OUTPUT, op->is_collective);
    }
  }
  if (op->again && own.running.empty()) {
    replay::offer(fn);
  }
  if (smartswap_end() != SMARTSWAP_OK && own.pending_code == SMARTSWAP_OK) {
    own.pending_code = SMARTSWAP_BROKEN;
    own.pending = "the end of " + op->name + ": " + smartswap_last_error();
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
                                     .scopes(
                                         {at::RecordScope::FUNCTION,
                                          at::RecordScope::BACKWARD_FUNCTION}));
}

void remove() {
  if (handle) {
    at::removeCallback(*handle);
    handle.reset();
  }
}

void set_aside(Aside mode) {
  thread().aside = mode;
}

void train_here() {
  thread().trains = true;
}

void step_ended() {
  train_here();
  step_has_begun.store(false, std::memory_order_relaxed);
}

void begin(const char* name) {
  Thread& own = thread();
  const auto part = smartswap_depth() == 0 && is_aside(own) ? SMARTSWAP_ASIDE : SMARTSWAP_STEP;
  check(smartswap_begin(name, current_stream(), part));
}

void touch(const at::Tensor& tensor, smartswap_access access) {
  check(touch_memory(tensor, access, false));
}

void end() {
  check(smartswap_end());
}

void sleep_if_calm() {
  if (!asleep.load(std::memory_order_relaxed) && smartswap_may_sleep() != 0) {
    remove();
    check(smartswap_sleep());
    asleep.store(true);
  }
}

void before_allocation(uint64_t size_bytes) {
  if (C10_UNLIKELY(asleep.load(std::memory_order_relaxed)) &&
      smartswap_should_wake(size_bytes) != 0) {
    wake();
  }
  Thread& own = thread();
  if (C10_UNLIKELY(own.pending_code != SMARTSWAP_OK)) {
    const int code = own.pending_code;
    own.pending_code = SMARTSWAP_OK;
    raise(code, own.pending);
  }
}

}  // namespace smartswap::observer
