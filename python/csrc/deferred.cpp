// The updates that wait, by the memory that they use.
#include "deferred.h"

#include <torch/csrc/utils/pybind.h>

#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "engine.h"
#include "outside.h"
#include "tensors.h"

namespace py = pybind11;

namespace smartswap::deferred {

std::atomic<size_t> detail::waiting{0};

namespace {

// So many may wait behind each other, as whoever calls one over and over uses nothing of theirs.
constexpr size_t kBehindMost = 8;

// The number of the update that this thread runs, or 0.
thread_local uint64_t running_here = 0;

struct Update {
  uint64_t number = 0;
  std::vector<const void*> starts;
  // What runs first: earlier ones that use memory of this one.
  std::vector<std::shared_ptr<Update>> behind;
  // How many wait in front of it at most, one behind the other.
  size_t depth = 0;
  std::function<void()> run;
  // As it was where the update was put off: gradients off, the optimizer's stream, and what that
  // had been given to do.
  at::ThreadLocalState state;
  std::optional<c10::Stream> stream;
  std::optional<c10::Event> given;
  // Set once it runs.
  std::optional<std::thread::id> runner;
  bool has_ended = false;
  bool has_failed = false;
};

struct Updates {
  std::mutex lock;
  std::condition_variable ended;
  uint64_t last_number = 0;
  std::vector<std::shared_ptr<Update>> in_order;
  // The latest that waits for memory. It is behind all others that do.
  std::unordered_map<const void*, std::shared_ptr<Update>> by_start;
};

// Never destroyed: tensors are used until the process ends.
Updates& updates() {
  static auto& value = *new Updates();
  return value;
}

std::optional<c10::Stream> stream_now() {
  const auto& device = attached();
  if (device.type == c10::DeviceType::CPU) {
    return std::nullopt;
  }
  const c10::impl::VirtualGuardImpl guard(device.type);
  return guard.getStream(c10::Device(device.type, device.index));
}

// Says which update a thread runs, as long as it does.
class RunningHere {
 public:
  explicit RunningHere(uint64_t number) : before_(std::exchange(running_here, number)) {}
  ~RunningHere() {
    running_here = before_;
  }
  RunningHere(const RunningHere&) = delete;
  RunningHere& operator=(const RunningHere&) = delete;

 private:
  uint64_t before_;
};

// What `stream` is given from here on waits for what `other` has been given so far.
void wait_on(const c10::Stream& stream, const c10::Stream& other) {
  c10::Event given(other.device_type());
  given.record(other);
  given.block(stream);
}

// Runs with the settings of then, on the stream of whoever uses its memory: that may run ahead of
// the optimizer's, as where shards are gathered for the next layer beside this one's compute. What
// the optimizer's stream is given later waits for it, as if it had run there. Behind an update that
// may have run on another stream meanwhile, it runs on the optimizer's.
void run_as_then(Update& update) {
  const py::gil_scoped_acquire held;
  const auto now = stream_now();
  // Its tensors are let go here, under the lock, whatever happens.
  const auto run = std::exchange(update.run, nullptr);
  const RunningHere running(update.number);
  const at::ThreadLocalStateGuard as_then(update.state);
  const outside::Not not_outside;
  if (!now || *now == *update.stream) {
    run();
    return;
  }
  if (update.depth == 0) {
    update.given->block(*now);
    run();
    wait_on(*update.stream, *now);
    return;
  }
  {
    const c10::StreamGuard on_its_stream(*update.stream);
    run();
  }
  wait_on(*now, *update.stream);
}

void forget(const std::shared_ptr<Update>& update) {
  auto& all = updates();
  {
    const std::lock_guard<std::mutex> guard(all.lock);
    update->has_ended = true;
    for (const void* start : update->starts) {
      const auto latest = all.by_start.find(start);
      if (latest != all.by_start.end() && latest->second == update) {
        all.by_start.erase(latest);
      }
    }
    all.in_order.erase(std::find(all.in_order.begin(), all.in_order.end(), update));
    detail::waiting.store(all.in_order.size(), std::memory_order_relaxed);
  }
  all.ended.notify_all();
}

// Another thread runs it, and may need the interpreter's lock to end it.
void wait_for(const std::shared_ptr<Update>& update) {
  std::optional<py::gil_scoped_release> released;
  if (PyGILState_Check() != 0) {
    released.emplace();
  }
  auto& all = updates();
  std::unique_lock<std::mutex> guard(all.lock);
  all.ended.wait(guard, [&] { return update->has_ended; });
}

// Lets go of what it would run, which belongs to the interpreter.
void let_go(Update& update) {
  const py::gil_scoped_acquire held;
  update.run = nullptr;
}

bool run_earlier(Update& update);

// Runs one, unless this thread is at it, or waits until the thread that runs it is done.
void run(const std::shared_ptr<Update>& update) {
  const auto self = std::this_thread::get_id();
  {
    const std::lock_guard<std::mutex> guard(updates().lock);
    if (update->has_ended || update->runner == self) {
      return;
    }
    if (!update->runner) {
      update->runner = self;
    }
  }
  if (update->runner != self) {
    return wait_for(update);
  }
  try {
    if (run_earlier(*update)) {
      run_as_then(*update);
    } else {
      let_go(*update);
    }
  } catch (...) {
    update->has_failed = true;
    let_go(*update);
    forget(update);
    throw;
  }
  forget(update);
}

// Runs what it waits behind. Returns whether that worked: what comes after an update that raised is
// never called.
bool run_earlier(Update& update) {
  // Only the thread that runs it looks there.
  for (const auto& earlier : std::exchange(update.behind, {})) {
    run(earlier);
    update.has_failed |= earlier->has_failed;
  }
  return !update.has_failed;
}

// Whether the thread may find an update waiting: to one that it runs, what is behind that one is
// still to come.
bool is_due(const Update& update) {
  return running_here == 0 || update.number < running_here;
}

std::shared_ptr<Update> find(const void* start) {
  auto& all = updates();
  const std::lock_guard<std::mutex> guard(all.lock);
  const auto found = all.by_start.find(start);
  return found != all.by_start.end() && is_due(*found->second) ? found->second : nullptr;
}

// Memory of any device: the steps that an optimizer counts may lie on the host.
const void* start_of_any(const at::Tensor& tensor) {
  const bool has_storage = tensor.defined() && tensor.unsafeGetTensorImpl()->has_storage();
  return has_storage ? start_of(tensor.unsafeGetTensorImpl()->unsafe_storage()) : nullptr;
}

void run_before_use_of(const c10::IValue& value) {
  if (value.isTensor()) {
    deferred::run_before(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      run_before_use_of(element);
    }
  }
}

int code_of(const std::exception& error) {
  if (const auto* raised = dynamic_cast<const py::error_already_set*>(&error)) {
    const py::gil_scoped_acquire held;
    const auto out_of_memory = py::module_::import("torch").attr("OutOfMemoryError");
    return raised->matches(out_of_memory) ? SMARTSWAP_OUT_OF_MEMORY : SMARTSWAP_BROKEN;
  }
  return SMARTSWAP_BROKEN;
}

}  // namespace

void put_off(const std::vector<at::Tensor>& tensors, std::function<void()> run, Earlier earlier) {
  auto update = std::make_shared<Update>();
  for (const auto& tensor : tensors) {
    const void* start = start_of_any(tensor);
    if (start == nullptr) {
      continue;
    }
    auto first = find(start);
    if (first != nullptr && (earlier == Earlier::kRuns || first->depth >= kBehindMost)) {
      run_before(start);
      first = nullptr;
    }
    if (first != nullptr) {
      update->depth = std::max(update->depth, first->depth + 1);
      update->behind.push_back(std::move(first));
    }
    update->starts.push_back(start);
  }
  update->run = std::move(run);
  update->stream = stream_now();
  if (update->stream) {
    update->given.emplace(update->stream->device_type());
    update->given->record(*update->stream);
  }
  auto& all = updates();
  const std::lock_guard<std::mutex> guard(all.lock);
  update->number = ++all.last_number;
  for (const void* start : update->starts) {
    all.by_start.insert_or_assign(start, update);
  }
  all.in_order.push_back(std::move(update));
  detail::waiting.store(all.in_order.size(), std::memory_order_relaxed);
}

uint64_t number_for(const at::Tensor& tensor) {
  if (count() == 0 || running_here != 0) {
    return 0;
  }
  const void* start = start_of_any(tensor);
  const auto update = start == nullptr ? nullptr : find(start);
  return update == nullptr ? 0 : update->number;
}

std::optional<Failure> run_before(const at::RecordFunction& fn) {
  try {
    for (const c10::IValue& input : fn.inputs()) {
      run_before_use_of(input);
    }
  } catch (const std::exception& error) {
    return Failure{
        code_of(error),
        std::string("an optimizer's update that had waited failed: ") + error.what()};
  }
  return std::nullopt;
}

void run_before(const at::Tensor& tensor) {
  if (const void* start = start_of_any(tensor)) {
    run_before(start);
  }
}

void run_before(const void* start) {
  const auto update = C10_LIKELY(count() == 0) ? nullptr : find(start);
  if (update != nullptr) {
    run(update);
  }
}

void run_all() {
  for (;;) {
    std::shared_ptr<Update> first;
    {
      auto& all = updates();
      const std::lock_guard<std::mutex> guard(all.lock);
      const auto self = std::this_thread::get_id();
      const auto may_run = [self](const auto& update) {
        return update->runner != self && is_due(*update);
      };
      const auto found = std::find_if(all.in_order.begin(), all.in_order.end(), may_run);
      first = found == all.in_order.end() ? nullptr : *found;
    }
    if (first == nullptr) {
      return;
    }
    run(first);
  }
}

}  // namespace smartswap::deferred
