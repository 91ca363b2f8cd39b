// The Python module `smartswap._adapter`: what the package's Python files call.
#include <torch/csrc/utils/pybind.h>

#include <c10/core/Allocator.h>
#include <torch/version.h>

#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocators.h"
#include "deferred.h"
#include "engine.h"
#include "faults.h"
#include "graphs.h"
#include "npu_allocator.h"
#include "npu_types.h"
#include "observer.h"
#include "operators.h"
#include "outside.h"
#include "refusal.h"
#include "replay.h"
#include "replay_kernel.h"
#include "seals.h"
#include "shortage.h"
#include "tensors.h"

namespace py = pybind11;

namespace smartswap {

namespace {

const char* text_or_null(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

c10::Device parse_device(const std::string& name) {
  return name == "host" ? c10::Device(c10::DeviceType::CPU) : c10::Device(name);
}

void attach(const c10::Device& device) {
  attached().type = device.type();
  attached().index = device.has_index() ? device.index() : 0;
  watch_forks();
  if (device.is_cpu()) {
    install_cpu_allocator();
  }
#ifdef SMARTSWAP_CUDA
  if (device.is_cuda()) {
    install_cuda_allocator();
  }
#endif
#ifdef SMARTSWAP_NPU
  if (device.is_privateuseone()) {
    install_npu_allocator();
  }
#endif
  choose_refusal_types();
  observer::train_here();
  observer::install();
  attached().least_bytes = smartswap_least_bytes();
  attached().active.store(true);
}

void open_engine(
    const std::string& device_name, uint64_t memory_bytes, uint64_t host_memory_bytes,
    uint64_t min_block_bytes, const std::optional<std::string>& prefer,
    const std::optional<std::string>& strategy, const std::optional<std::string>& config_file,
    const std::optional<std::string>& record_file) {
  TORCH_CHECK(
      smartswap_abi_version() == SMARTSWAP_ABI_VERSION,
      "SmartSwap: libsmartswap.so is not the one that this package was built with: install the "
      "package again");
  const auto device = parse_device(device_name);
#ifndef SMARTSWAP_CUDA
  TORCH_CHECK_VALUE(
      !device.is_cuda(),
      "SmartSwap: this package was built without CUDA: install it again where torch is a CUDA "
      "build and CUDA's headers are found");
#endif
  bool is_supported = device.is_cpu() || device.is_cuda();
  // The engine's own name of the device, and PyTorch's default stream there: CUDA's is the legacy
  // one, whose handle is 0.
  std::string engine_device = device_name;
  uint64_t compute_stream = 0;
#ifdef SMARTSWAP_NPU
  if (device.is_privateuseone()) {
    is_supported = true;
    const int index = device.has_index() ? device.index() : 0;
    engine_device = "acl:" + std::to_string(index);
    compute_stream = default_npu_stream(index);
  }
#endif
  TORCH_CHECK_VALUE(
      is_supported, "SmartSwap: the device ", device_name, " is not supported by this build");
  smartswap_settings settings;
  smartswap_default_settings(&settings);
  settings.device = engine_device.c_str();
  settings.memory_bytes = memory_bytes;
  settings.host_memory_bytes = host_memory_bytes;
  settings.min_block_bytes = min_block_bytes;
  settings.prefer = text_or_null(prefer);
  settings.strategy = text_or_null(strategy);
  settings.config_file = text_or_null(config_file);
  settings.record_file = text_or_null(record_file);
  settings.compute_stream = compute_stream;
  {
    py::gil_scoped_release released;
    check(smartswap_open(&settings));
  }
  attach(device);
}

void close_engine() {
  if (smartswap_is_open() == 0) {
    return;
  }
  py::gil_scoped_release released;
  seals::watch(false);
  check(smartswap_bring_home());
  attached().active.store(false);
  observer::remove();
  remove_cpu_allocator();
#ifdef SMARTSWAP_CUDA
  remove_cuda_allocator();
#endif
#ifdef SMARTSWAP_NPU
  remove_npu_allocator();
#endif
  outside::forget();
  // Tensors that live on keep their memory, and the engine with it.
  smartswap_close();
}

void step() {
  py::gil_scoped_release released;
  observer::step_ended();
  // By now a script has imported what it imports.
  look_for_foreign_kernels();
  check(smartswap_step());
  outside::trim();
  observer::sleep_if_calm();
  seals::check();
}

// Returns the bytes that stay on the device.
uint64_t suspend() {
  py::gil_scoped_release released;
  observer::watch_again();
  check(smartswap_suspend());
  return engine_stats().reserved.current;
}

void resume() {
  py::gil_scoped_release released;
  check(smartswap_resume());
}

// Ranks that judge each step together; see smartswap.h.

void share(int role) {
  py::gil_scoped_release released;
  check(smartswap_share(static_cast<smartswap_role>(role)));
}

std::vector<double> figures() {
  std::vector<double> own(SMARTSWAP_FIGURES);
  check(smartswap_get_figures(own.data(), SMARTSWAP_FIGURES));
  return own;
}

std::pair<int, uint32_t> agree(const std::vector<double>& worst) {
  // It may make a plan.
  py::gil_scoped_release released;
  smartswap_round round = SMARTSWAP_LATER;
  uint32_t n_times = 0;
  const auto n_figures = static_cast<uint32_t>(worst.size());
  check(smartswap_agree(worst.data(), n_figures, &round, &n_times));
  return {round, n_times};
}

std::vector<double> times(uint32_t n_times) {
  std::vector<double> own(n_times);
  check(smartswap_get_times(own.data(), n_times));
  return own;
}

int agree_times(const std::vector<double>& longest) {
  py::gil_scoped_release released;
  smartswap_round round = SMARTSWAP_LATER;
  const auto n_times = static_cast<uint32_t>(longest.size());
  check(smartswap_agree_times(longest.data(), n_times, &round));
  return round;
}

py::dict bytes_dict(const smartswap_bytes& bytes) {
  py::dict result;
  result["current"] = bytes.current;
  result["peak"] = bytes.peak;
  return result;
}

py::dict calls_dict(const uint64_t (&calls)[4]) {
  static const char* const kinds[] = {"created", "released", "mapped", "unmapped"};
  py::dict result;
  for (size_t kind = 0; kind < std::size(kinds); ++kind) {
    result[kinds[kind]] = calls[kind];
  }
  return result;
}

py::dict stats() {
  const auto now = engine_stats();
  static const char* const stages[] = {"WarmUp", "SearchPolicy", "Stable"};
  py::dict result;
  result["stage"] = stages[now.stage];
  result["steps"] = now.steps;
  result["limit_bytes"] = now.limit_bytes;
  result["requested_bytes"] = bytes_dict(now.requested);
  result["allocated_bytes"] = bytes_dict(now.allocated);
  result["active_bytes"] = bytes_dict(now.active);
  result["reserved_bytes"] = bytes_dict(now.reserved);
  result["pinned_host_bytes"] = bytes_dict(now.pinned_host);
  result["used_host_bytes"] = bytes_dict(now.used_host);
  result["allocations"] = now.allocations;
  result["swapped_out_bytes"] = now.swapped_out_bytes;
  result["swapped_in_bytes"] = now.swapped_in_bytes;
  result["recomputed_ops"] = now.recomputed_ops;
  result["kept_bytes"] = now.kept_bytes;
  result["misses"] = now.misses;
  result["rescues"] = now.rescues;
  result["recalls"] = now.recalls;
  result["host_waits"] = now.host_waits;
  result["stall_us"] = now.stall_us;
  result["last_step_us"] = now.last_step_us;
  result["plan"] = now.plan;
  py::dict by_stage;
  for (size_t stage = 0; stage < std::size(stages); ++stage) {
    by_stage[stages[stage]] = now.steps_by_stage[stage];
  }
  result["steps_by_stage"] = by_stage;
  result["memory_calls"] = calls_dict(now.memory_calls);
  result["last_memory_calls"] = calls_dict(now.last_memory_calls);
  result["branches"] = now.branches;
  result["unlimited_us"] = now.unlimited_us;
  result["search_steps"] = now.search_steps;
  result["reported_steps"] = now.reported_steps;
  result["outside_bytes"] = outside::counted_bytes();
  return result;
}

// What a function of the engine that makes a text says.
std::string text_of(char* (*make)()) {
  char* text = nullptr;
  {
    py::gil_scoped_release released;
    text = make();
  }
  if (text == nullptr) {
    raise(SMARTSWAP_USAGE, smartswap_last_error());
  }
  std::string result(text);
  smartswap_free_text(text);
  return result;
}

at::Tensor empty_swapped(
    const std::vector<int64_t>& sizes, at::ScalarType dtype, const c10::Device& device) {
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  int64_t count = 1;
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, "SmartSwap: a size is negative: ", size);
    count *= size;
  }
  const uint64_t size_bytes = static_cast<uint64_t>(count) * c10::elementSize(dtype);
  const uint64_t stream = current_stream();
  void* memory = smartswap_allocate_swapped(size_bytes, stream);
  if (memory == nullptr) {
    raise(SMARTSWAP_DEVICE, smartswap_last_error());
  }
  const auto release = [](void* address) {
    if (!in_forked_child()) {
      smartswap_free_swapped(address, current_stream());
    }
  };
#ifdef SMARTSWAP_NPU
  if (device.is_privateuseone()) {
    return npu_tensor_owning(memory, release, sizes, options);
  }
#endif
  return at::from_blob(memory, sizes, release, options, device);
}

py::dict recipes() {
  const auto now = replay::report();
  py::dict result;
  result["kept_calls"] = now.kept_calls;
  result["kept_bytes"] = now.kept_bytes;
  result["offered"] = now.offered;
  result["runs"] = now.runs;
  result["keeping_us"] = now.keeping_us;
  result["sure_kinds"] = now.sure_kinds;
  result["unsure_ops"] = now.unsure;
  result["refused"] = std::map<std::string, uint64_t>(now.refused.begin(), now.refused.end());
  return result;
}

void run_graph(graphs::Graph& graph, const py::function& launch) {
  // Bringing memory back may take a kernel that another thread launches.
  const py::gil_scoped_release released;
  graph.run([&launch] {
    const py::gil_scoped_acquire held;
    launch();
  });
}

py::dict built_for() {
  py::dict result;
  result["torch"] = TORCH_VERSION;
#ifdef SMARTSWAP_CUDA
  result["cuda"] = true;
#else
  result["cuda"] = false;
#endif
  return result;
}

}  // namespace

}  // namespace smartswap

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace smartswap;
  // What a call waits for may need the interpreter: another thread's replay of a kernel.
  using Released = py::call_guard<py::gil_scoped_release>;
  module.def(
      "open", &open_engine, py::arg("device"), py::arg("memory_bytes") = 0,
      py::arg("host_memory_bytes") = 0, py::arg("min_block_bytes") = 0,
      py::arg("prefer") = py::none(), py::arg("strategy") = py::none(),
      py::arg("config_file") = py::none(), py::arg("record_file") = py::none());
  module.def("close", &close_engine);
  module.def("is_open", [] { return smartswap_is_open() != 0; });
  module.def("step", &step);
  module.def("suspend", &suspend);
  module.def("resume", &resume);
  module.def("enter_outside", &outside::enter, Released());
  module.def("leave_outside", &outside::leave);
  module.def("checks_order", [] { return smartswap_checks_order() != 0; });
  module.def("note_order", [](int call, uint64_t event, uint64_t stream) {
    // What is captured orders nothing now.
    if (!graphs::captures()) {
      check(smartswap_note_order(call, event, stream));
    }
  });
  module.def("share", &share);
  module.def("figures", &figures);
  module.def("agree", &agree);
  module.def("times", &times);
  module.def("agree_times", &agree_times);
  module.def("stats", &stats);
  module.def("reset_peaks", [] { check(smartswap_reset_peaks()); });
  module.def("explain", [] { return text_of(&smartswap_explain); });
  module.def("advise", [] { return text_of(&smartswap_advise); });
  module.def("deferral", [] { return text_of(&smartswap_deferral); });
  module.def("take_news", [] { return text_of(&smartswap_take_news); });
  module.def("save_trace", [](const std::string& path) {
    check(smartswap_save_trace(path.c_str()));
  });
  module.def("save_report", [](const std::string& folder) {
    check(smartswap_save_report(folder.c_str()));
  });
  module.def("trim", [] { check(smartswap_trim()); });
  module.def(
      "hold",
      [](uint64_t address, const std::string& by) {
        auto* memory = reinterpret_cast<void*>(address);
        if (graphs::captures()) {
          TORCH_CHECK(
              smartswap_stays(memory) != 0, "SmartSwap: ", by,
              " shares memory that moves while a CUDA graph is captured: do it before");
          return;
        }
        deferred::run_before(memory);
        seals::lend(memory);
        check(smartswap_hold(memory, current_stream(), by.c_str()));
      },
      Released());
  module.def(
      "lend",
      [](uint64_t address, const std::string& by) {
        auto* memory = reinterpret_cast<void*>(address);
        if (graphs::captures()) {
          return graphs::lend(memory, observer::is_in_captured_op());
        }
        deferred::run_before(memory);
        seals::lend(memory);
        check(smartswap_lend(memory, current_stream(), by.c_str()));
      },
      Released());
  module.def("held", [] { return text_of(&smartswap_held); });
  module.def("moves", [](uint64_t address) {
    return smartswap_moves(reinterpret_cast<void*>(address)) != 0;
  });
  module.def("owns", [](uint64_t address) {
    return smartswap_find(reinterpret_cast<void*>(address), nullptr, nullptr) == SMARTSWAP_OK;
  });
  module.def("discard", [](const at::Tensor& tensor) {
    deferred::run_before(tensor);
    seals::forget(start_of(tensor.storage()));
    return smartswap_discard(start_of(tensor.storage())) != 0;
  });
  module.def(
      "put_off",
      [](const std::vector<at::Tensor>& tensors, const py::function& run, bool is_behind) {
        const auto earlier = is_behind ? deferred::Earlier::kWaits : deferred::Earlier::kRuns;
        deferred::put_off(tensors, [run] { run(); }, earlier);
      });
  module.def("put_off_number", &deferred::number_for);
  module.def("n_put_off", &deferred::count);
  module.def("run_put_off", &deferred::run_all, Released());
  module.def("recipes", &recipes);
  module.def("went_without_memory", &shortage::went_without);
  module.def("verify", &seals::watch);
  module.def("verified_uses", &seals::n_compared);
  module.def("drop_at_once", &replay::drop_at_once);
  module.def("has_swapped", [] { return smartswap_has_swapped() != 0; });
  module.def("empty_swapped", &empty_swapped);
  module.def("is_swapped", [](uint64_t address) {
    return smartswap_is_swapped(reinterpret_cast<void*>(address)) != 0;
  });
  module.def("set_aside", [](int mode) {
    observer::set_aside(static_cast<observer::Aside>(mode));
  });
  module.def("begin", [](const std::string& name) { observer::begin(name.c_str()); }, Released());
  module.def(
      "touch",
      [](const at::Tensor& tensor, int access) {
        observer::touch(tensor, static_cast<smartswap_access>(access));
      },
      Released());
  module.def("end", [] { observer::end(); }, Released());
  py::class_<replay::KernelOp>(module, "KernelOp")
      .def(py::init<std::string, std::vector<int>>())
      .def("launch", &replay::KernelOp::launch);
  py::class_<graphs::Graph>(module, "Graph")
      .def(py::init<>())
      .def("begin", &graphs::Graph::begin, Released())
      .def("end", &graphs::Graph::end)
      .def("run", &run_graph)
      .def_property_readonly("ends_step", &graphs::Graph::ends_step);
  module.def("captures", &graphs::captures);
  module.def("note_step_end", &graphs::note_step_end);
  module.def("note_foreign_kernel", &note_foreign_kernel);
  module.def("unwatch", &replay::unwatch);
  module.def("watch_again", &replay::watch_again);
  module.def("watches", &replay::watches);
  module.def("watch_faults", &watch_faults);
  module.def("ignore_faults", &ignore_faults);
  module.def("built_for", &built_for);
}
