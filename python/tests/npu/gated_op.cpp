// An operator as MindSpeed's users write them: its kernels go to torch_npu's current stream by
// themselves, on raw pointers, and PyTorch's dispatcher sees none of it. y = x * sigmoid(gate).
//
// The kernels are host functions, which the stand-in of Ascend's library runs in stream order.
#include <ATen/ops/empty_like.h>
#include <torch/csrc/utils/pybind.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <cmath>
#include <functional>
#include <tuple>

#include "NPUSwapManager.h"

extern "C" aclError aclrtLaunchHostFunc(aclrtStream stream, void (*function)(void*), void* data);

namespace {

using c10_npu::swap::NPUSwapManager;
using Kernel = std::function<void()>;

// Off, the operator is as it was before the hooks.
bool hooks_are_on = true;

void launch(Kernel kernel) {
  const auto run = [](void* data) {
    const auto own = std::unique_ptr<Kernel>(static_cast<Kernel*>(data));
    (*own)();
  };
  const auto stream = c10_npu::getCurrentNPUStream().stream();
  TORCH_CHECK(
      aclrtLaunchHostFunc(stream, run, new Kernel(std::move(kernel))) == 0, "gated: no launch");
}

float sigmoid(float value) {
  return 1.0f / (1.0f + std::exp(-value));
}

void begin(const char* name, std::initializer_list<at::Tensor> inputs) {
  if (hooks_are_on) {
    NPUSwapManager::GetInstance().BeginHook(name);
    for (const auto& input : inputs) {
      NPUSwapManager::GetInstance().TensorHook(input);
    }
  }
}

void end(std::initializer_list<at::Tensor> outputs) {
  if (hooks_are_on) {
    for (const auto& output : outputs) {
      NPUSwapManager::GetInstance().TensorHook(output);
    }
    NPUSwapManager::GetInstance().PostHook();
    NPUSwapManager::GetInstance().EndHook();
  }
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& gate) {
  begin("gated_forward", {x, gate});
  at::Tensor y = at::empty_like(x);
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  const auto* weight = static_cast<const float*>(gate.const_data_ptr());
  auto* to = static_cast<float*>(y.mutable_data_ptr());
  launch([=, count = x.numel()] {
    for (int64_t index = 0; index < count; ++index) {
      to[index] = from[index] * sigmoid(weight[index]);
    }
  });
  end({y});
  return y;
}

std::tuple<at::Tensor, at::Tensor> backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  begin("gated_backward", {dy, x, gate});
  at::Tensor dx = at::empty_like(x);
  at::Tensor dgate = at::empty_like(gate);
  const auto* slope = static_cast<const float*>(dy.const_data_ptr());
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  const auto* weight = static_cast<const float*>(gate.const_data_ptr());
  auto* to_x = static_cast<float*>(dx.mutable_data_ptr());
  auto* to_gate = static_cast<float*>(dgate.mutable_data_ptr());
  launch([=, count = x.numel()] {
    for (int64_t index = 0; index < count; ++index) {
      const float part = sigmoid(weight[index]);
      to_x[index] = slope[index] * part;
      to_gate[index] = slope[index] * from[index] * part * (1.0f - part);
    }
  });
  end({dx, dgate});
  return {dx, dgate};
}

}  // namespace

PYBIND11_MODULE(gated_op, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
  module.def("use_hooks", [](bool on) { hooks_are_on = on; });
}
