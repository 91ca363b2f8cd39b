// Hooks for C++ operators whose kernels PyTorch's dispatcher does not see, and for programs
// without PyTorch. Header only: include it and link with -lsmartswap.
//
//     at::Tensor y = at::empty(...);
//     auto& swap = c10_npu::swap::NPUSwapManager::GetInstance();
//     swap.BeginHook("gmm_forward");
//     swap.TensorHook(x);        // inputs, and outputs that exist already
//     swap.TensorHook(weight);
//     swap.TensorHook(y);
//     ...                        // the work, on raw pointers
//     swap.PostHook();
//     swap.EndHook();
//
// What is allocated between BeginHook and EndHook stays until the op ends, and may be told of
// after the work, but before PostHook.
// From TensorHook to EndHook the tensors' memory is on the device, and work that is given to the
// op's stream after TensorHook comes after the copy that brought it back. Where no engine is open,
// and in forked children, the hooks do nothing, so an operator needs no second version.
//
// Include it after PyTorch's headers: it uses those that were included before.
// - With c10 or ATen: at::Tensor, its lists, vectors and optionals are taken, and failures are
//   c10::Error, which Python sees as RuntimeError, or c10::OutOfMemoryError.
// - With c10/cuda (torch_npu): an op runs on the thread's current CUDA (NPU) stream.
// - Without them: a View {pointer, bytes} is taken, failures are SwapError, a std::runtime_error,
//   and ops run on the stream that the engine was opened with.
// SetStream chooses another stream for the calling thread.
//
// A hook that fails has ended its op. Other exceptions between BeginHook and EndHook (at::empty may
// throw one) would leave it open for ever: there use SwapOp, which ends the op in any case.
#ifndef SMARTSWAP_NPU_SWAP_MANAGER_H
#define SMARTSWAP_NPU_SWAP_MANAGER_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "smartswap.h"

#if defined(TORCH_CHECK)
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#define SMARTSWAP_HOOKS_ATEN 1
#else
#define SMARTSWAP_HOOKS_ATEN 0
#endif
#if defined(C10_CUDA_API)
#include <c10/cuda/CUDAStream.h>
#define SMARTSWAP_HOOKS_CUDA 1
#else
#define SMARTSWAP_HOOKS_CUDA 0
#endif
#if defined(C10_NPU_API)
#include <torch_npu/csrc/core/npu/NPUStream.h>
#define SMARTSWAP_HOOKS_NPU 1
#else
#define SMARTSWAP_HOOKS_NPU 0
#endif

// What the file means depends on what was included before, so each meaning has its own names.
#define SMARTSWAP_HOOKS_JOIN_(a, b, c) hooks_##a##b##c
#define SMARTSWAP_HOOKS_JOIN(a, b, c) SMARTSWAP_HOOKS_JOIN_(a, b, c)
#define SMARTSWAP_HOOKS_NAMESPACE \
  SMARTSWAP_HOOKS_JOIN(SMARTSWAP_HOOKS_ATEN, SMARTSWAP_HOOKS_CUDA, SMARTSWAP_HOOKS_NPU)

namespace c10_npu::swap {
inline namespace SMARTSWAP_HOOKS_NAMESPACE {

// Memory that an op uses, where there is no tensor.
struct View {
  const void* pointer = nullptr;
  size_t size_bytes = 0;
};

// A hook that failed, where PyTorch's own exceptions are not known.
class SwapError : public std::runtime_error {
 public:
  SwapError(int code, const std::string& text) : std::runtime_error(text), code_(code) {}

  // A smartswap_code.
  int code() const noexcept {
    return code_;
  }

 private:
  int code_;
};

namespace detail {

[[noreturn]] inline void raise(int code, const std::string& text) {
#if SMARTSWAP_HOOKS_ATEN
  if (code == SMARTSWAP_OUT_OF_MEMORY) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "SmartSwap: ", text);
  }
  TORCH_CHECK(false, "SmartSwap: ", text);
#endif
  throw SwapError(code, "SmartSwap: " + text);
}

// An op that was begun and not ended.
struct Frame {
  // Whether the engine knows of it.
  bool active = false;
  // Whether PostHook was called.
  bool posted = false;
};

struct Thread {
  std::vector<Frame> frames;
  std::optional<uint64_t> stream;
};

inline Thread& thread() {
  static thread_local Thread value;
  return value;
}

// What has tensors' members is one, so that this file needs no header of theirs.
template <typename T, typename = void>
struct is_tensor : std::false_type {};
template <typename T>
struct is_tensor<
    T,
    std::void_t<
        decltype(std::declval<const T&>().defined()), decltype(std::declval<const T&>().numel()),
        decltype(std::declval<const T&>().has_storage()),
        decltype(std::declval<const T&>().storage().data())>> : std::true_type {};

template <typename T, typename = void>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<
    T,
    std::void_t<
        decltype(std::declval<const T&>().has_value()),
        decltype(*std::declval<const T&>())>> : std::true_type {};

template <typename T, typename = void>
struct is_range : std::false_type {};
template <typename T>
struct is_range<
    T,
    std::void_t<
        decltype(std::declval<const T&>().begin()),
        decltype(std::declval<const T&>().end())>> : std::true_type {};

template <typename>
inline constexpr bool is_none = false;

}  // namespace detail

// The hooks. Each thread has its own ops; ops inside an op are part of the outermost one.
class NPUSwapManager {
 public:
  static NPUSwapManager& GetInstance() {
    static NPUSwapManager value;
    return value;
  }

  NPUSwapManager(const NPUSwapManager&) = delete;
  NPUSwapManager& operator=(const NPUSwapManager&) = delete;

  // Begins an op. Throws if the engine or its device has failed; then no op was begun.
  void BeginHook(const char* name) {
    BeginHook(name, Part());
  }

  void BeginHook(const std::string& name) {
    BeginHook(name.c_str(), Part());
  }

  // As above, and says whether the op is part of the training step.
  void BeginHook(const char* name, smartswap_part part) {
    auto& own = detail::thread();
    const bool active = smartswap_is_open() != 0;
    if (active) {
      const int code = smartswap_begin(name, Stream(), part);
      if (code != SMARTSWAP_OK) {
        detail::raise(code, smartswap_last_error());
      }
    }
    own.frames.push_back({active, false});
  }

  // Tells that the op uses the memory of a tensor (or of each in a list, vector or optional): on
  // return it is on the device. What the op allocated itself counts as written, all else as read
  // and written. Undefined and empty tensors, and memory of others, are passed over. Throws if
  // memory is out, or the op has no begin; the op is ended then.
  template <typename T>
  void TensorHook(const T& value) {
    TensorHook(value, SMARTSWAP_UNKNOWN);
  }

  // As above, and says how it is used. What is only read need not be copied out again.
  template <typename T>
  void TensorHook(const T& value, smartswap_access access) {
    if (detail::thread().frames.empty()) {
      detail::raise(SMARTSWAP_USAGE, "TensorHook without BeginHook on this thread");
    }
    if (detail::thread().frames.back().posted) {
      Fail(SMARTSWAP_USAGE, "TensorHook after PostHook: tensors come before it");
    }
    Touch(value, access);
  }

  // Tells that the op's work has been given to its stream, and all its tensors are known.
  void PostHook() {
    auto& frames = detail::thread().frames;
    if (frames.empty()) {
      detail::raise(SMARTSWAP_USAGE, "PostHook without BeginHook on this thread");
    }
    frames.back().posted = true;
  }

  // Ends the op: its memory may leave the device once its stream is done with it.
  void EndHook() {
    auto& frames = detail::thread().frames;
    if (frames.empty()) {
      detail::raise(SMARTSWAP_USAGE, "EndHook without BeginHook on this thread");
    }
    const bool active = frames.back().active;
    frames.pop_back();
    if (active) {
#if SMARTSWAP_HOOKS_NPU
      // torch_npu queues operators on the host: this waits until they have reached their stream.
      Stream();
#endif
      const int code = smartswap_end();
      if (code != SMARTSWAP_OK) {
        detail::raise(code, smartswap_last_error());
      }
    }
  }

  // Ops that this thread begins from now on run on that stream of the driver (cudaStream_t,
  // aclrtStream as an integer); nothing stands for the current one.
  void SetStream(std::optional<uint64_t> stream) {
    detail::thread().stream = stream;
  }

  // Number of ops open on this thread.
  size_t Depth() const {
    return detail::thread().frames.size();
  }

 private:
  NPUSwapManager() = default;

  friend class SwapOp;

  // Ends the innermost op without a word: its own failure is told already, or is found by the
  // next call.
  static void Abandon() noexcept {
    auto& frames = detail::thread().frames;
    const bool active = frames.back().active;
    frames.pop_back();
    if (active) {
      smartswap_end();
    }
  }

  [[noreturn]] static void Fail(int code, const std::string& text) {
    Abandon();
    detail::raise(code, text);
  }

  static smartswap_part Part() {
#if SMARTSWAP_HOOKS_ATEN
    // What runs without gradients before the step's first op is an evaluation.
    if (!c10::GradMode::is_enabled() && smartswap_step_begun() == 0) {
      return SMARTSWAP_ASIDE;
    }
#endif
    return SMARTSWAP_STEP;
  }

  static uint64_t Stream() {
    if (detail::thread().stream) {
      return *detail::thread().stream;
    }
#if SMARTSWAP_HOOKS_NPU
    return reinterpret_cast<uint64_t>(c10_npu::getCurrentNPUStream().stream());
#elif SMARTSWAP_HOOKS_CUDA
    return reinterpret_cast<uint64_t>(c10::cuda::getCurrentCUDAStream().stream());
#else
    return smartswap_compute_stream();
#endif
  }

  template <typename T>
  static void Touch(const T& value, smartswap_access access) {
    if constexpr (detail::is_tensor<T>::value) {
      TouchTensor(value, access);
    } else if constexpr (std::is_convertible_v<const T&, View>) {
      const View view = value;
      if (view.size_bytes > 0) {
        TouchMemory(view.pointer, access);
      }
    } else if constexpr (detail::is_optional<T>::value) {
      if (value.has_value()) {
        Touch(*value, access);
      }
    } else if constexpr (detail::is_range<T>::value) {
      for (const auto& element : value) {
        Touch(element, access);
      }
    } else {
      static_assert(
          detail::is_none<T>, "TensorHook takes tensors, Views, and lists or optionals of them");
    }
  }

  template <typename T>
  static void TouchTensor(const T& tensor, smartswap_access access) {
    if (!tensor.defined() || tensor.numel() == 0 || !tensor.has_storage()) {
      return;
    }
#if !SMARTSWAP_HOOKS_CUDA && !SMARTSWAP_HOOKS_NPU
    const auto& own = detail::thread();
    if (own.frames.back().active && !own.stream && !tensor.is_cpu()) {
      Fail(
          SMARTSWAP_USAGE,
          "the operator was compiled without the device's stream: include "
          "<c10/cuda/CUDAStream.h> (or torch_npu's NPUStream.h) before NPUSwapManager.h, or call "
          "SetStream");
    }
#endif
    TouchMemory(tensor.storage().data(), access);
  }

  static void TouchMemory(const void* memory, smartswap_access access) {
    if (memory == nullptr || !detail::thread().frames.back().active) {
      return;
    }
    const int code = smartswap_touch(memory, access);
    if (code != SMARTSWAP_OK) {
      const std::string text = smartswap_last_error();
      Fail(code, text);
    }
  }
};

// An op from here to the end of the scope, whatever is thrown in it.
//
//     c10_npu::swap::SwapOp op("gmm_forward");
//     op.Tensor(x, SMARTSWAP_READ);
class SwapOp {
 public:
  explicit SwapOp(const char* name) {
    NPUSwapManager::GetInstance().BeginHook(name);
    depth_ = NPUSwapManager::GetInstance().Depth();
  }

  ~SwapOp() {
    // A hook that failed has ended it already.
    while (NPUSwapManager::GetInstance().Depth() >= depth_) {
      NPUSwapManager::Abandon();
    }
  }

  SwapOp(const SwapOp&) = delete;
  SwapOp& operator=(const SwapOp&) = delete;

  // See NPUSwapManager::TensorHook.
  template <typename T>
  void Tensor(const T& value, smartswap_access access = SMARTSWAP_UNKNOWN) {
    NPUSwapManager::GetInstance().TensorHook(value, access);
  }

 private:
  size_t depth_ = 0;
};

}  // namespace SMARTSWAP_HOOKS_NAMESPACE
}  // namespace c10_npu::swap

#endif  // SMARTSWAP_NPU_SWAP_MANAGER_H
