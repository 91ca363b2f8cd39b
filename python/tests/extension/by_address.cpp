// An extension as many packages have them: bound to Python, no operator of the dispatcher, its
// kernels working on raw memory.
#include <ATen/ops/empty_like.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <vector>

namespace {

at::Tensor doubled(const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  const auto* from = static_cast<const float*>(x.const_data_ptr());
  auto* to = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) {
    to[i] = 2 * from[i];
  }
  return out;
}

void scale_all(const std::vector<std::vector<at::Tensor>>& lists, double factor) {
  for (const auto& list : lists) {
    for (const auto& x : list) {
      auto* data = static_cast<float*>(x.mutable_data_ptr());
      for (int64_t i = 0; i < x.numel(); ++i) {
        data[i] *= static_cast<float>(factor);
      }
    }
  }
}

// Takes any object with a `weight`, as packages with quantized weights do.
double sum_of(const pybind11::handle& object) {
  const auto x = object.attr("weight").cast<at::Tensor>();
  const auto* data = static_cast<const float*>(x.const_data_ptr());
  double sum = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    sum += data[i];
  }
  return sum;
}

struct Adder {
  double term;
  void add(const at::Tensor& x) const {
    auto* data = static_cast<float*>(x.mutable_data_ptr());
    for (int64_t i = 0; i < x.numel(); ++i) {
      data[i] += static_cast<float>(term);
    }
  }
  static double first(const at::Tensor& x) {
    return static_cast<const float*>(x.const_data_ptr())[0];
  }
};

}  // namespace

PYBIND11_MODULE(by_address, module) {
  module.def("doubled", &doubled);
  module.def("scale_all", &scale_all);
  module.def_submodule("inner").def("sum_of", &sum_of);
  pybind11::class_<Adder>(module, "Adder")
      .def(pybind11::init<double>())
      .def("add", &Adder::add)
      .def_static("first", &Adder::first);
}
