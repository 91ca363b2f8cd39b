// Kernels that no operator announces, such as those of Triton, as ops that can be run again.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smartswap.h"

namespace smartswap::replay {

// While there are some on a thread, addresses that Python takes there are used only within a
// running op.
void unwatch();
void watch_again();
bool watches();

// What launches of one kernel have in common.
class KernelOp {
 public:
  // By argument, how a tensor there is used: a smartswap_access.
  KernelOp(std::string name, std::vector<int> uses);

  // Calls `launch(kernel, *args, **kwargs)` as an op that uses these tensors, and lets the engine
  // run it again if what it writes does not depend on what was there. Where there are arguments
  // that may have tensors inside, nothing is done unless they are `known` to have none, and
  // NotImplemented is returned.
  pybind11::object launch(
      const pybind11::object& launch, const pybind11::object& kernel, const pybind11::tuple& args,
      const pybind11::dict& kwargs, bool known);

 private:
  smartswap_access use_of(size_t index) const;
  void keep(
      const pybind11::object& launch, const pybind11::object& kernel, const pybind11::tuple& args,
      const pybind11::dict& kwargs) const;

  std::string name_;
  std::vector<int> uses_;
  // Tells kernels apart.
  uint64_t number_;
};

}  // namespace smartswap::replay
