// Kernels that no operator announces, such as those of Triton, as ops that can be run again.
#pragma once

#include <torch/extension.h>

#include <cstdint>
#include <string>
#include <vector>

namespace smartswap::replay {

// By argument: a smartswap_access, or less than 0 for what is no tensor.
using Accesses = std::vector<int>;

// Begins the op of a kernel that uses its arguments so.
void begin_kernel(const std::string& name, const pybind11::args& args, const Accesses& accesses);

// How to launch a kernel once more: `relaunch(kernel, args, kwargs)`, where `kwargs` has no tensors.
// Kernels of one number are the same.
struct Relaunch {
  pybind11::object relaunch;
  pybind11::object kernel;
  pybind11::object kwargs;
  uint64_t number;
};

// Ends that op, and lets the engine run it again if what it writes does not depend on what was
// there.
void end_kernel(
    const std::string& name, const Relaunch& how, const pybind11::args& args,
    const Accesses& accesses);

}  // namespace smartswap::replay
