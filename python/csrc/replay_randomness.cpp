// The states of random number generators, and the settings that choose kernels.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <tuple>

#include "engine.h"
#include "replay_call.h"

namespace smartswap::replay {

namespace {

std::atomic<uint64_t> draws{0};
thread_local uint64_t own_draws = 0;

c10::Device attached_device() {
  const auto& owner = attached();
  return owner.type == c10::kCPU ? c10::Device(c10::kCPU) : c10::Device(owner.type, owner.index);
}

at::Generator default_generator(const c10::Device& device) {
#ifdef SMARTSWAP_NPU
  if (device.is_privateuseone()) {
    return default_npu_generator(device.index());
  }
#endif
  return at::globalContext().defaultGenerator(device);
}

// Earlier versions of PyTorch have names for these that they would check against each other.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
using at::Float32Backend;
using at::Float32Op;
constexpr Float32Op kPrecisions[kPrecisionCount] = {Float32Op::MATMUL, Float32Op::CONV};

Float32Backend backend() {
  return attached().type == c10::kCPU ? Float32Backend::MKLDNN : Float32Backend::CUDA;
}

// Those of torch_npu, such as allow_hf32, only Python can read: a script must leave them.
int precision(size_t index) {
  return static_cast<int>(at::globalContext().float32Precision(backend(), kPrecisions[index]));
}

void set_precision(size_t index, int value) {
  at::globalContext().setFloat32Precision(
      backend(), kPrecisions[index], static_cast<at::Float32Precision>(value));
}
#else
int precision(size_t) {
  return 0;
}

void set_precision(size_t, int) {}
#endif

void restore(at::CPUGeneratorImpl& generator, const State& state) {
  at::mt19937 engine;
  engine.set_data(*state.engine);
  generator.set_engine(engine);
  generator.set_next_float_normal_sample(state.next_float);
  generator.set_next_double_normal_sample(state.next_double);
}

}  // namespace

void note_draw() {
  ++draws;
  ++own_draws;
}

uint64_t draws_of_others() {
  return draws.load() - own_draws;
}

at::Generator generator_of(c10::ArrayRef<const c10::IValue> inputs) {
  for (const auto& input : inputs) {
    if (input.isGenerator() && input.toGenerator().defined()) {
      return input.toGenerator();
    }
  }
  return default_generator(attached_device());
}

std::vector<at::Generator> default_generators() {
  std::vector<at::Generator> all{default_generator(c10::kCPU)};
  if (attached().type != c10::kCPU) {
    all.push_back(default_generator(attached_device()));
  }
  return all;
}

State State::of(const at::Generator& generator) {
  State state;
  state.generator = generator;
  auto* impl = generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> guard(impl->mutex_);
  if (generator.device().is_cpu()) {
    auto* cpu = static_cast<at::CPUGeneratorImpl*>(impl);
    state.engine = std::make_shared<at::mt19937_data_pod>(cpu->engine().data());
    state.next_float = cpu->next_float_normal_sample();
    state.next_double = cpu->next_double_normal_sample();
  } else {
    state.seed = impl->current_seed();
    state.offset = impl->get_offset();
  }
  return state;
}

bool State::operator==(const State& state) const {
  const bool same_engine = engine == nullptr ||
      (engine->left_ == state.engine->left_ && engine->next_ == state.engine->next_ &&
       engine->state_ == state.engine->state_);
  return same_engine && next_float == state.next_float && next_double == state.next_double &&
      seed == state.seed && offset == state.offset;
}

DrawingFrom::DrawingFrom(const State& state) : before_(State::of(state.generator)) {
  auto* impl = state.generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> guard(impl->mutex_);
  if (state.generator.device().is_cpu()) {
    restore(static_cast<at::CPUGeneratorImpl&>(*impl), state);
    return;
  }
  // Another state behind the generator, as CUDA graphs use it. A generator whose seed or offset is
  // set would have the next recurrent layer draw the state of its dropout anew.
  own_ = impl->graphsafe_get_state();
  const auto other = impl->clone();
  // Each of these asks the driver whether the stream is captured.
  if (before_.seed != state.seed) {
    other->set_current_seed(state.seed);
  }
  if (before_.seed != state.seed || before_.offset != state.offset) {
    other->set_offset(state.offset);
  }
  impl->graphsafe_set_state(other);
}

DrawingFrom::~DrawingFrom() {
  auto* impl = before_.generator.unsafeGetGeneratorImpl();
  const std::lock_guard<std::mutex> guard(impl->mutex_);
  if (own_ == nullptr) {
    restore(static_cast<at::CPUGeneratorImpl&>(*impl), before_);
  } else {
    impl->graphsafe_set_state(own_);
  }
}

Settings Settings::now() {
  const auto& context = at::globalContext();
  Settings settings;
  settings.gradients = at::GradMode::is_enabled();
  settings.autocast = at::autocast::is_autocast_enabled(attached().type);
  if (settings.autocast) {
    settings.autocast_type = at::autocast::get_autocast_dtype(attached().type);
  }
  settings.deterministic = context.deterministicAlgorithms();
  settings.deterministic_warns = context.deterministicAlgorithmsWarnOnly();
  settings.default_type = c10::get_default_dtype_as_scalartype();
  for (size_t index = 0; index < kPrecisionCount; ++index) {
    settings.precisions[index] = precision(index);
  }
  // Kernels of an accelerator do not depend on it.
  settings.threads = attached().type == c10::kCPU ? at::get_num_threads() : 0;
  return settings;
}

void Settings::apply(const Settings& now) const {
  auto& context = at::globalContext();
  at::GradMode::set_enabled(gradients);
  if (deterministic != now.deterministic || deterministic_warns != now.deterministic_warns) {
    context.setDeterministicAlgorithms(deterministic, deterministic_warns);
  }
  if (default_type != now.default_type) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(default_type));
  }
  for (size_t index = 0; index < kPrecisionCount; ++index) {
    if (precisions[index] != now.precisions[index]) {
      set_precision(index, precisions[index]);
    }
  }
  if (threads != now.threads) {
    at::set_num_threads(threads);
  }
}

bool Settings::operator==(const Settings& other) const {
  const auto all = [](const Settings& one) {
    return std::tie(
        one.gradients, one.autocast, one.autocast_type, one.deterministic,
        one.deterministic_warns, one.default_type, one.threads);
  };
  return all(*this) == all(other) &&
      std::equal(std::begin(precisions), std::end(precisions), std::begin(other.precisions));
}

}  // namespace smartswap::replay
