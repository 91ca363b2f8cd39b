// What graphs use, and their runs.
#include "graphs.h"

#ifdef SMARTSWAP_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

#include <algorithm>
#include <mutex>
#include <string>

#include "deferred.h"
#include "engine.h"
#include "observer.h"
#include "seals.h"
#include "tensors.h"

namespace smartswap::graphs {

std::atomic<int> detail::underway{0};

namespace {

// Where there are no streams: graphs that this thread captures.
thread_local int captured_here = 0;

struct Captured {
  std::mutex lock;
  std::vector<Graph*> graphs;
};

Captured& captured() {
  // Never destroyed: threads may outlive it.
  static auto& value = *new Captured();
  return value;
}

// PyTorch captures one at a time. Of several, each is taken to use what any of them does.
template <class Body>
void for_each_captured(const Body& body) {
  auto& all = captured();
  const std::lock_guard<std::mutex> guard(all.lock);
  for (Graph* graph : all.graphs) {
    body(*graph);
  }
}

// Whether what is captured now will be run where it is seen.
bool is_announced() {
  auto& all = captured();
  const std::lock_guard<std::mutex> guard(all.lock);
  return !all.graphs.empty();
}

}  // namespace

bool detail::captures_here() {
#ifdef SMARTSWAP_CUDA
  if (attached().type == c10::DeviceType::CUDA) {
    auto status = cudaStreamCaptureStatusNone;
    const auto stream = c10::cuda::getCurrentCUDAStream(attached().index).stream();
    if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
      // The default stream while another one captures that waits for it: it captures nothing.
      cudaGetLastError();
      return false;
    }
    return status != cudaStreamCaptureStatusNone;
  }
#endif
  return captured_here > 0;
}

void pool_opened() {
  ++detail::underway;
}

void pool_closed() {
  --detail::underway;
}

void note(const std::vector<smartswap_touched>& touched) {
  for_each_captured([&](Graph& graph) { graph.add(touched); });
}

std::optional<Failure> note(const at::RecordFunction& fn, const Operator& op) {
  if (op.is_metadata || calls_others(fn, op)) {
    return std::nullopt;
  }
  std::vector<smartswap_touched> touched;
  const auto inputs = fn.inputs();
  for (size_t index = 0; index < inputs.size(); ++index) {
    visit_storages(inputs[index], [&](const c10::Storage& storage) {
      touched.push_back({start_of(storage), op.use_of(inputs, index)});
    });
  }
  const bool moves = std::any_of(touched.begin(), touched.end(), [](const auto& one) {
    return smartswap_stays(one.address) == 0;
  });
  if (moves && !is_announced()) {
    return Failure{
        SMARTSWAP_USAGE,
        "a CUDA graph that is not captured through torch.cuda.CUDAGraph uses memory that moves: "
        "make its tensors in `with smartswap.outside():`"};
  }
  if (moves && op.is_collective) {
    return Failure{
        SMARTSWAP_USAGE,
        "a collective that a CUDA graph captures uses memory that moves: call it once before the "
        "capture, or make its tensors in `with smartswap.outside():`"};
  }
  try {
    note(touched);
  } catch (const c10::OutOfMemoryError& error) {
    return Failure{SMARTSWAP_OUT_OF_MEMORY, error.what_without_backtrace()};
  } catch (const c10::Error& error) {
    return Failure{SMARTSWAP_USAGE, error.what_without_backtrace()};
  }
  return std::nullopt;
}

void lend(void* memory, bool in_op) {
  void* start = base_of(memory);
  if (start == nullptr) {
    return;
  }
  for_each_captured([&](Graph& graph) {
    if (!in_op || graph.used_.count(start) == 0) {
      graph.add({{start, SMARTSWAP_READ_WRITE}});
    }
  });
}

bool note_step_end() {
  if (!captures()) {
    return false;
  }
  for_each_captured([](Graph& graph) { graph.ends_step_ = true; });
  return true;
}

Graph::Graph() : number_(smartswap_graph_make()) {
  if (number_ == 0) {
    raise(SMARTSWAP_USAGE, smartswap_last_error());
  }
}

Graph::~Graph() {
  end();
  if (!in_forked_child()) {
    smartswap_graph_forget(number_);
  }
}

void Graph::begin() {
  // What waits would wait for operators that nobody runs.
  deferred::run_all();
  // Whoever sleeps sees nothing of what is captured.
  observer::watch_again();
  auto& all = captured();
  const std::lock_guard<std::mutex> guard(all.lock);
  if (!is_captured_) {
    check(smartswap_capture_begins());
    is_captured_ = true;
    all.graphs.push_back(this);
    ++detail::underway;
    ++captured_here;
  }
}

void Graph::end() {
  auto& all = captured();
  const std::lock_guard<std::mutex> guard(all.lock);
  if (is_captured_) {
    is_captured_ = false;
    smartswap_capture_ended();
    all.graphs.erase(std::find(all.graphs.begin(), all.graphs.end(), this));
    --detail::underway;
    --captured_here;
  }
}

void Graph::add(const std::vector<smartswap_touched>& touched) {
  for (const auto& one : touched) {
    used_[one.address] |= one.access != SMARTSWAP_READ;
  }
  const auto count = static_cast<uint32_t>(touched.size());
  if (const int code = smartswap_graph_note(number_, touched.data(), count); code != SMARTSWAP_OK) {
    const std::string text = smartswap_last_error();
    const std::string what = "what a CUDA graph uses must be on the device together when it ";
    raise(code, what + "is captured: " + text);
  }
}

void Graph::include(const Graph& inner) {
  check(smartswap_graph_include(number_, inner.number_));
  for (const auto& [start, is_written] : inner.used_) {
    used_[start] |= is_written;
  }
  ends_step_ = ends_step_ || inner.ends_step_;
}

void Graph::run(const std::function<void()>& launch) {
  if (captures()) {
    for_each_captured([this](Graph& outer) { outer.include(*this); });
    return launch();
  }
  if (deferred::count() != 0) {
    for (const auto& [start, _] : used_) {
      deferred::run_before(start);
    }
  }
  observer::begin("cuda_graph::replay");
  if (const int code = smartswap_graph_touch(number_); code != SMARTSWAP_OK) {
    const std::string text = smartswap_last_error();
    observer::abandon();
    raise(code, "what a CUDA graph uses must be on the device together when it runs: " + text);
  }
  try {
    launch();
  } catch (...) {
    observer::abandon();
    throw;
  }
  if (C10_UNLIKELY(seals::watches())) {
    for (const auto& [start, is_written] : used_) {
      if (is_written) {
        seals::forget(start);
      }
    }
  }
  observer::end();
}

}  // namespace smartswap::graphs
