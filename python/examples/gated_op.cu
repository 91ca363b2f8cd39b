// The same operator as gated_op.cpp on a GPU: its kernels go to PyTorch's current stream, and
// PyTorch's dispatcher sees none of it.
#include <torch/extension.h>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <tuple>

// After PyTorch's headers: with c10/cuda the hooks order ops on the current stream.
#include "NPUSwapManager.h"

namespace {

using c10_npu::swap::NPUSwapManager;
using c10_npu::swap::SwapOp;

// See gated_op.cpp.
bool hooks_are_on = true;

constexpr int kThreads = 256;

void check(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
      "gated: expected contiguous floats on a GPU");
}

__device__ float sigmoid(float value) {
  return 1.0f / (1.0f + expf(-value));
}

__global__ void forward_kernel(const float* x, const float* gate, float* y, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < count) {
    y[index] = x[index] * sigmoid(gate[index]);
  }
}

__global__ void backward_kernel(
    const float* dy, const float* x, const float* gate, float* dx, float* dgate, int64_t count) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < count) {
    const float part = sigmoid(gate[index]);
    dx[index] = dy[index] * part;
    dgate[index] = dy[index] * x[index] * part * (1.0f - part);
  }
}

unsigned int blocks(int64_t count) {
  return static_cast<unsigned int>((count + kThreads - 1) / kThreads);
}

void forward_work(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
  if (x.numel() == 0) {
    return;
  }
  const auto stream = c10::cuda::getCurrentCUDAStream();
  forward_kernel<<<blocks(x.numel()), kThreads, 0, stream>>>(
      x.const_data_ptr<float>(), gate.const_data_ptr<float>(), y.mutable_data_ptr<float>(),
      x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& gate) {
  check(x);
  check(gate);
  TORCH_CHECK(x.sizes() == gate.sizes(), "gated: x and gate differ in shape");
  const c10::cuda::CUDAGuard guard(x.device());
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
  if (x.numel() == 0) {
    return {dx, dgate};
  }
  const auto stream = c10::cuda::getCurrentCUDAStream();
  backward_kernel<<<blocks(x.numel()), kThreads, 0, stream>>>(
      dy.const_data_ptr<float>(), x.const_data_ptr<float>(), gate.const_data_ptr<float>(),
      dx.mutable_data_ptr<float>(), dgate.mutable_data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return {dx, dgate};
}

Gradients backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate) {
  for (const auto& tensor : {dy, x, gate}) {
    check(tensor);
  }
  const c10::cuda::CUDAGuard guard(x.device());
  if (!hooks_are_on) {
    return backward_work(dy, x, gate);
  }
  SwapOp op("gated_backward");
  op.Tensor(std::vector<at::Tensor>{dy, x, gate}, SMARTSWAP_READ);
  return backward_work(dy, x, gate);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
  module.def("use_hooks", [](bool on) { hooks_are_on = on; });
}
