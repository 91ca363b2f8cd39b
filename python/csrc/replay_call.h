// A call of an operator that can be made again, without its tensors.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "npu_types.h"
#include "replay.h"

namespace smartswap::replay {

using Extents = c10::SmallVector<int64_t, 5>;

// What a call does with a tensor.
enum class Use : uint8_t {
  read,
  // It changes it. What it makes should not depend on it: where it does, its trial finds that out.
  changed,
  // It writes all of the tensor's memory, whatever was there.
  written
};

// A tensor as its memory and its shape: the tensor itself may be gone by then.
struct View {
  // Of its storage. Null if nobody looks at the bytes.
  char* memory = nullptr;
  size_t size_bytes = 0;
  // In elements, from there.
  int64_t offset = 0;
  Extents sizes;
  Extents strides;
  c10::ScalarType type = c10::ScalarType::Undefined;
  c10::Device device = c10::kCPU;
  bool requires_grad = false;
  bool is_conj = false;
  bool is_neg = false;
  // It stands for a number of Python.
  bool is_number = false;
  Use use = Use::read;
  // The bytes themselves, of a small tensor of the host.
  std::shared_ptr<char> bytes;
  // Of a storage of torch_npu.
  std::shared_ptr<const NpuLayout> npu_layout;

  // A tensor of this shape in a storage at `memory`.
  at::Tensor at(char* memory) const;

 private:
  at::Tensor around(char* memory) const;
};

struct Argument;
// A list of tensors, some of which may be missing.
struct List {
  std::vector<Argument> elements;
  bool has_optional = false;
};
struct Argument {
  std::variant<c10::IValue, View, List> value;
};

// Where the arguments of a call go, and what else is known of them.
struct Arguments {
  std::vector<Argument>& all;
  // Memory that the call reads and the engine does not move.
  std::vector<const void*>& small;
  // Tells calls apart that may give other bits: by shapes, types, alignment and values.
  std::string& kind;
};

// How the arguments of a call are to be read.
struct Reading {
  // What it makes depends on their shapes alone.
  bool shapes_only = false;
  // Their values say how large its outputs are, if they are masks.
  bool masks_size_outputs = false;
};

// Keeps the arguments, of which the one at `index` is used as `use_of(index)` says. Returns why
// the call cannot be made again, or null.
const char* keep_arguments(
    c10::ArrayRef<const c10::IValue> inputs, Reading reading,
    const std::function<Use(size_t)>& use_of, Arguments& kept);

// Calls `body` with each tensor among the arguments.
template <class Body>
void visit_views(std::vector<Argument>& arguments, const Body& body) {
  for (auto& argument : arguments) {
    if (auto* view = std::get_if<View>(&argument.value)) {
      body(*view);
    } else if (auto* list = std::get_if<List>(&argument.value)) {
      visit_views(list->elements, body);
    }
  }
}

// The state of a generator.
struct State {
  at::Generator generator;
  // Of the CPU's.
  std::shared_ptr<at::mt19937_data_pod> engine;
  std::optional<float> next_float;
  std::optional<double> next_double;
  // Of those of CUDA and NPUs.
  uint64_t seed = 0;
  uint64_t offset = 0;

  static State of(const at::Generator& generator);
  bool operator==(const State& state) const;
};

// While it lives, the generator of `state` draws from there. Then it goes on where it was.
class DrawingFrom {
 public:
  explicit DrawingFrom(const State& state);
  ~DrawingFrom();
  DrawingFrom(const DrawingFrom&) = delete;
  DrawingFrom& operator=(const DrawingFrom&) = delete;

 private:
  const State before_;
  // Not the CPU's: what it drew from before.
  c10::intrusive_ptr<c10::GeneratorImpl> own_;
};

// The generator that a call of a drawing operator uses.
at::Generator generator_of(c10::ArrayRef<const c10::IValue> inputs);
// Those that operators of this thread use unless they are told another one.
std::vector<at::Generator> default_generators();
// Numbers that other threads have taken until now.
uint64_t draws_of_others();

constexpr size_t kPrecisionCount = 2;

// Settings of the process and of the thread that say which kernels run.
struct Settings {
  bool gradients = false;
  bool autocast = false;
  c10::ScalarType autocast_type = c10::ScalarType::Float;
  bool deterministic = false;
  bool deterministic_warns = false;
  c10::ScalarType default_type = c10::ScalarType::Float;
  int precisions[kPrecisionCount] = {};
  int threads = 0;

  static Settings now();
  // Changes what differs from `now`, which is what holds.
  void apply(const Settings& now) const;
  bool operator==(const Settings& other) const;
};

// An output that the engine moves.
struct Output {
  char* memory;
  uint64_t size_bytes;
  // Its place among all tensors that the call returns, if it allocated it. Otherwise the memory
  // was there, and an argument.
  std::optional<size_t> place;
  // The number of allocations of this size that the call makes before.
  size_t turn = 0;
};

// Submits a kernel that no operator announces, with these arguments.
using Launch = std::function<void(torch::jit::Stack&&)>;
using Work = std::variant<c10::OperatorHandle, Launch>;

struct Call {
  explicit Call(Work work) : work(std::move(work)) {}

  Work work;
  std::vector<Argument> arguments;
  std::vector<const void*> small;
  std::vector<Output> outputs;
  std::optional<State> state;
  Settings settings;
  std::optional<c10::Stream> stream;

  // What it holds of the host's memory, about.
  uint64_t held_bytes() const;
};

// Calls it once more. Of arguments in these storages it gets the copies.
using Copies = std::vector<std::pair<const char*, char*>>;
std::vector<at::Tensor> run(const Call& call, const Copies& copies);
// Calls it once more, to bring back one of its outputs.
void bring_back(const Call& call, const Output& output);

// All tensors in a stack of results.
std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& results);

// Whether two tensors of one shape have the same bytes, in storages at these addresses.
bool same_bytes(const View& view, char* one, char* other);

}  // namespace smartswap::replay
