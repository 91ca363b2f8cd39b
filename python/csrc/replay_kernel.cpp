// Launches of kernels that no operator announces, kept like calls of operators.
#include "replay_kernel.h"

#include <algorithm>
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

struct Kernel {
  explicit Kernel(const Relaunch& how)
      : relaunch(how.relaunch), kernel(how.kernel), kwargs(how.kwargs) {}
  ~Kernel() {
    auto& all = unneeded();
    const std::lock_guard<std::mutex> guard(all.lock);
    for (auto* object : {&relaunch, &kernel, &kwargs}) {
      all.objects.push_back(std::move(*object));
    }
  }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  py::object relaunch;
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

void launch(const Kernel& kernel, torch::jit::Stack&& arguments) {
  const py::gil_scoped_acquire locked;
  py::tuple args(arguments.size());
  for (size_t index = 0; index < arguments.size(); ++index) {
    args[index] = object_of(std::move(arguments[index]));
  }
  kernel.relaunch(kernel.kernel, args, kernel.kwargs);
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

std::optional<torch::jit::Stack> values_of(const py::args& args) {
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

// Keeps the launch in the thread's state, as the call of an operator.
void keep(const Relaunch& how, const py::args& args, const Accesses& accesses) {
  auto& own = thread();
  own.captured.reset();
  own.unproven.reset();
  own.allocated.clear();
  const int use = smartswap_replay_use();
  const auto is_free = [](int access) {
    return access < 0 || access == SMARTSWAP_READ || access == SMARTSWAP_WRITE;
  };
  if (use == SMARTSWAP_UNUSED || !std::all_of(accesses.begin(), accesses.end(), is_free)) {
    return;
  }
  if (const char* why = hindrance()) {
    return refuse(why);
  }
  const auto values = values_of(args);
  if (!values) {
    return refuse("an argument of another kind");
  }
  const auto kernel = std::make_shared<const Kernel>(how);
  auto& captured = own.captured.emplace(
      Launch([kernel](torch::jit::Stack&& stack) { launch(*kernel, std::move(stack)); }));
  auto& call = captured.call;
  captured.kind = "kernel";
  captured.kind.append(reinterpret_cast<const char*>(&how.number), sizeof(how.number));
  Arguments arguments{call.arguments, call.small, captured.kind};
  const auto use_of = [&](size_t index) {
    const bool is_written = index < accesses.size() && accesses[index] == SMARTSWAP_WRITE;
    return is_written ? Use::written : Use::read;
  };
  const c10::ArrayRef<const c10::IValue> inputs(values->data(), values->size());
  if (const char* why = keep_arguments(inputs, {}, use_of, arguments)) {
    own.captured.reset();
    return refuse(why);
  }
  call.settings = Settings::now();
  call.stream = current_stream();
  captured.is_recorded = use == SMARTSWAP_RECORDED;
}

}  // namespace

void begin_kernel(const std::string& name, const py::args& args, const Accesses& accesses) {
  std::vector<std::pair<at::Tensor, smartswap_access>> touched;
  for (size_t index = 0; index < std::min(args.size(), accesses.size()); ++index) {
    if (accesses[index] < 0) {
      continue;
    }
    const auto tensor = args[index].cast<at::Tensor>();
    auto access = static_cast<smartswap_access>(accesses[index]);
    // What lies beside it stays as it was.
    const bool is_part = access == SMARTSWAP_WRITE && !fills_storage(tensor);
    touched.emplace_back(tensor, is_part ? SMARTSWAP_READ_WRITE : access);
  }
  // Bringing them back may take a kernel that another thread launches.
  const py::gil_scoped_release released;
  observer::begin(name.c_str());
  try {
    for (const auto& [tensor, access] : touched) {
      observer::touch(tensor, access);
    }
  } catch (...) {
    smartswap_end();
    throw;
  }
}

void end_kernel(
    const std::string& name, const Relaunch& how, const py::args& args,
    const Accesses& accesses) {
  unneeded().drop();
  keep(how, args, accesses);
  const py::gil_scoped_release released;
  if (thread().captured) {
    offer_captured();
  }
  observer::end();
  prove(name, {});
}

}  // namespace smartswap::replay
