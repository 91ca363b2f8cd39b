// Which allocations may be the workspaces of CUDA's libraries.
#pragma once

#include <c10/util/env.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace at::cuda {
// The sizes of workspaces, which PyTorch takes from the allocator and shows to no operator. Their
// header wants those of all of CUDA's libraries. Weak, as another PyTorch may lack them.
__attribute__((weak)) size_t getChosenWorkspaceSize();
__attribute__((weak)) size_t getCUDABlasLtWorkspaceSize();
}  // namespace at::cuda

namespace smartswap {

// The sizes of workspaces, asked for again when the variables change that they come from: each
// answer of PyTorch parses them anew by a regular expression, which costs more than to allocate.
class WorkspaceSizes {
 public:
  bool have(size_t size_bytes) {
    std::array<std::optional<std::string>, 2> said = {
        c10::utils::get_env("CUBLAS_WORKSPACE_CONFIG"),
        c10::utils::get_env("CUBLASLT_WORKSPACE_SIZE")};
    if (!known_ || said != said_) {
      said_ = std::move(said);
      sizes_ = {ask(&at::cuda::getChosenWorkspaceSize), ask(&at::cuda::getCUDABlasLtWorkspaceSize)};
      known_ = true;
    }
    const auto may_be = [&](const auto& size) { return size.value_or(size_bytes) == size_bytes; };
    return may_be(sizes_[0]) || may_be(sizes_[1]);
  }

 private:
  // Nothing where this PyTorch cannot say: any size may be one then.
  static std::optional<size_t> ask(size_t (*size)()) {
    return size == nullptr ? std::nullopt : std::optional(size());
  }

  bool known_ = false;
  std::array<std::optional<std::string>, 2> said_;
  std::array<std::optional<size_t>, 2> sizes_;
};

}  // namespace smartswap
