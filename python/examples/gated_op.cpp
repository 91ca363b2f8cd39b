// An operator whose work PyTorch's dispatcher does not see: y = x * sigmoid(gate), on raw pointers,
// called from Python directly. The hooks tell the engine what it uses.
#include <torch/extension.h>

#include <cmath>
#include <tuple>

// After PyTorch's headers: it uses those that were included before.
#include "NPUSwapManager.h"

namespace {

using c10_npu::swap::NPUSwapManager;
using c10_npu::swap::SwapOp;

// Off, the operator is as it was before the hooks: under a cap it then reads memory that is not
// there. For the test that shows it.
bool hooks_are_on = true;

void check(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
      "gated: expected contiguous floats on the CPU");
}

float sigmoid(float value) {
  return 1.0f / (1.0f + std::exp(-value));
}

void forward_work(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  const float* from = x.const_data_ptr<float>();
  const float* weight = gate.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for (int64_t index = 0; index < x.numel(); ++index) {
    to[index] = from[index] * sigmoid(weight[index]);
  }
}

// The six calls, as an operator of one piece has them.
at::Tensor forward(const at::Tensor& x, const at::Tensor& gate) {
  check(x);
  check(gate);
  TORCH_CHECK(x.sizes() == gate.sizes(), "gated: x and gate differ in shape");
  // Before the hooks: it may throw, and an op that was begun must be ended.
  at::Tensor y = at::empty_like(x);
  if (!hooks_are_on) {
    forward_work(x, gate, y);
    return y;
  }
  NPUSwapManager::GetInstance().BeginHook("gated_forward");
  NPUSwapManager::GetInstance().TensorHook(x, SMARTSWAP_READ);
  NPUSwapManager::GetInstance().TensorHook(gate, SMARTSWAP_READ);
  NPUSwapManager::GetInstance().TensorHook(y, SMARTSWAP_WRITE);
  forward_work(x, gate, y);
  NPUSwapManager::GetInstance().PostHook();
  NPUSwapManager::GetInstance().EndHook();
  return y;
}

using Gradients = std::tuple<at::Tensor, at::Tensor>;

Gradients backward_work(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  at::Tensor dx = at::empty_like(x);
  at::Tensor dgate = at::empty_like(gate);
  const float* slope = dy.const_data_ptr<float>();
  const float* from = x.const_data_ptr<float>();
  const float* weight = gate.const_data_ptr<float>();
  float* to_x = dx.mutable_data_ptr<float>();
  float* to_gate = dgate.mutable_data_ptr<float>();
  for (int64_t index = 0; index < x.numel(); ++index) {
    const float part = sigmoid(weight[index]);
    to_x[index] = slope[index] * part;
    to_gate[index] = slope[index] * from[index] * part * (1.0f - part);
  }
  return {dx, dgate};
}

// As a scope: at::empty_like may throw, and the op ends all the same.
Gradients backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  for (const auto& tensor : {dy, x, gate}) {
    check(tensor);
  }
  if (!hooks_are_on) {
    return backward_work(dy, x, gate);
  }
  SwapOp op("gated_backward");
  op.Tensor(std::vector<at::Tensor>{dy, x, gate}, SMARTSWAP_READ);
  // What the op allocates itself stays until it ends.
  return backward_work(dy, x, gate);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
  module.def("use_hooks", [](bool on) { hooks_are_on = on; });
}
