// Launches of kernels that no operator announces, kept like calls of operators.
#include "replay_kernel.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine.h"
#include "observer.h"
#include "replay_call.h"
#include "replay_state.h"
#include "replay_thread.h"
#include "tensors.h"

namespace py = pybind11;

namespace smartswap::replay {

namespace {

// Objects of Python that are not needed any more. Calls are given up where the interpreter's lock
// must not be waited for, as whoever has it may wait for the engine.
struct Unneeded {
  std::mutex lock;
  std::vector<py::object> objects;

  void drop() {
    std::vector<py::object> dropped;
    const std::lock_guard<std::mutex> guard(lock);
    dropped.swap(objects);
  }
};

Unneeded& unneeded() {
  // Never destroyed: the interpreter is gone by then.
  static auto* value = new Unneeded;
  return *value;
}

thread_local int unwatched = 0;

class Unwatched {
 public:
  Unwatched() {
    ++unwatched;
  }
  ~Unwatched() {
    --unwatched;
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

py::object call(
    const py::object& launch, const py::object& kernel, const py::tuple& args,
    const py::object& kwargs) {
  py::tuple all(args.size() + 1);
  all[0] = kernel;
  for (size_t index = 0; index < args.size(); ++index) {
    all[index + 1] = args[index];
  }
  // The launcher asks for addresses; the op already keeps what they point to.
  const Unwatched here;
  PyObject* result = PyObject_Call(launch.ptr(), all.ptr(), kwargs.ptr());
  if (result == nullptr) {
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(result);
}

struct Kernel {
  Kernel(py::object launch, py::object kernel, py::object kwargs)
      : launch(std::move(launch)), kernel(std::move(kernel)), kwargs(std::move(kwargs)) {}
  ~Kernel() {
    auto& all = unneeded();
    const std::lock_guard<std::mutex> guard(all.lock);
    for (auto* object : {&launch, &kernel, &kwargs}) {
      all.objects.push_back(std::move(*object));
    }
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  py::object launch;
  py::object kernel;
  py::object kwargs;
};

py::object object_of(c10::IValue&& value) {
  if (value.isTensor()) {
    return py::cast(std::move(value).toTensor());
  }
  if (value.isBool()) {
    return py::cast(value.toBool());
  }
  if (value.isInt()) {
    return py::cast(value.toInt());
  }
  return value.isDouble() ? py::cast(value.toDouble()) : py::none();
}

void launch_again(const Kernel& kernel, torch::jit::Stack&& arguments) {
  const py::gil_scoped_acquire locked;
  py::tuple args(arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    args[index] = object_of(std::move(arguments[index]));
  }
  call(kernel.launch, kernel.kernel, args, kernel.kwargs);
}

// None for an argument that no kernel of Triton's compiler takes.
std::optional<c10::IValue> value_of(const py::handle& object) {
  if (THPVariable_Check(object.ptr())) {
    return c10::IValue(THPVariable_Unpack(object.ptr()));
  }
  if (PyBool_Check(object.ptr())) {
    return c10::IValue(object.cast<bool>());
  }
  if (PyLong_CheckExact(object.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    return overflow == 0 ? std::optional<c10::IValue>(number) : std::nullopt;
  }
  if (PyFloat_CheckExact(object.ptr())) {
    return c10::IValue(object.cast<double>());
  }
  return object.is_none() ? std::optional<c10::IValue>(c10::IValue()) : std::nullopt;
}

std::optional<torch::jit::Stack> values_of(const py::tuple& args) {
  torch::jit::Stack values;
  values.reserve(args.size());
  for (const auto& object : args) {
    auto value = value_of(object);
    if (!value) {
      return std::nullopt;
    }
    values.push_back(*std::move(value));
  }
  return values;
}

bool is_plain(PyObject* object) {
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyBool_Check(object) ||
      object == Py_None || PyUnicode_CheckExact(object);
}

bool are_plain(const py::tuple& args, const py::dict& kwargs) {
  return std::all_of(
             args.begin(), args.end(),
             [](const py::handle& value) {
               return THPVariable_CheckExact(value.ptr()) || is_plain(value.ptr());
             }) &&
      std::all_of(kwargs.begin(), kwargs.end(), [](const auto& entry) {
           return is_plain(entry.second.ptr());
         });
}

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

void unwatch() {
  ++unwatched;
}

void watch_again() {
  --unwatched;
}

bool watches() {
  return unwatched == 0;
}

KernelOp::KernelOp(std::string name, std::vector<int> uses)
    : name_(std::move(name)), uses_(std::move(uses)), number_(next_number()) {}

smartswap_access KernelOp::use_of(size_t index) const {
  return index < uses_.size() ? static_cast<smartswap_access>(uses_[index]) : SMARTSWAP_UNKNOWN;
}

py::object KernelOp::launch(
    const py::object& launch, const py::object& kernel, const py::tuple& args,
    const py::dict& kwargs, bool known) {
  if (!known && !are_plain(args, kwargs)) {
    return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  }
  unneeded().drop();
  c10::SmallVector<std::pair<at::Tensor, smartswap_access>, 8> used;
  for (size_t index = 0; index < args.size(); ++index) {
    if (!THPVariable_Check(args[index].ptr())) {
      continue;
    }
    const auto& tensor = THPVariable_Unpack(args[index].ptr());
    const auto use = use_of(index);
    // What lies beside it stays as it was.
    const bool is_part = use == SMARTSWAP_WRITE && !fills_storage(tensor);
    used.emplace_back(tensor, is_part ? SMARTSWAP_READ_WRITE : use);
  }
  if (used.empty()) {
    return call(launch, kernel, args, kwargs);
  }
  {
    // Bringing them back may take a kernel that another thread launches.
    const py::gil_scoped_release released;
    observer::begin(name_.c_str());
    try {
      for (const auto& [tensor, use] : used) {
        observer::touch(tensor, use);
      }
    } catch (...) {
      observer::abandon();
      throw;
    }
  }
  py::object result;
  try {
    result = call(launch, kernel, args, kwargs);
    keep(launch, kernel, args, kwargs);
  } catch (...) {
    observer::abandon();
    throw;
  }
  used.clear();
  const py::gil_scoped_release released;
  if (thread().captured) {
    offer_captured();
  }
  observer::end();
  prove(name_, {});
  return result;
}

void KernelOp::keep(
    const py::object& launch, const py::object& kernel, const py::tuple& args,
    const py::dict& kwargs) const {
  auto& own = thread();
  own.captured.reset();
  own.unproven.reset();
  own.allocated.clear();
  const int wanted = smartswap_replay_use();
  if (C10_LIKELY(wanted == SMARTSWAP_UNUSED) || wanted == SMARTSWAP_RECORDED_FOR_SIZES) {
    return;
  }
  for (size_t index = 0; index < args.size(); ++index) {
    const auto use = use_of(index);
    const bool is_tensor = THPVariable_Check(args[index].ptr());
    if (is_tensor && use != SMARTSWAP_READ && use != SMARTSWAP_WRITE) {
      return;
    }
  }
  if (const char* why = hindrance()) {
    return refuse(why);
  }
  const auto values = values_of(args);
  if (!values) {
    return refuse("an argument of another kind");
  }
  const auto kept = std::make_shared<const Kernel>(launch, kernel, kwargs);
  auto& captured = own.captured.emplace(
      Launch([kept](torch::jit::Stack&& stack) { launch_again(*kept, std::move(stack)); }));
  auto& call = captured.call;
  captured.kind = "kernel";
  captured.kind.append(reinterpret_cast<const char*>(&number_), sizeof(number_));
  Arguments arguments{call.arguments, call.small, captured.kind};
  const auto kept_use_of = [this](size_t index) {
    return use_of(index) == SMARTSWAP_WRITE ? Use::written : Use::read;
  };
  const c10::ArrayRef<const c10::IValue> inputs(values->data(), values->size());
  if (const char* why = keep_arguments(inputs, {}, kept_use_of, arguments)) {
    own.captured.reset();
    return refuse(why);
  }
  call.settings = Settings::now();
  call.stream = stream_now();
  captured.is_recorded = wanted == SMARTSWAP_RECORDED;
}

}  // namespace smartswap::replay
