// A program without PyTorch: it works on four times the memory that it has, through the hooks.
//
//     c++ -std=c++17 hooks.cpp -I../include -L<folder of libsmartswap.so> -lsmartswap -o hooks
//
// It checks every byte, prints what moved, and fails if anything was wrong or did not move.
#include "NPUSwapManager.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

using c10_npu::swap::NPUSwapManager;
using c10_npu::swap::SwapOp;
using c10_npu::swap::View;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLimitBytes = 16 * kMiB;
constexpr uint64_t kBlockBytes = 2 * kMiB;
constexpr size_t kBlocks = 32;
constexpr size_t kWords = kBlockBytes / sizeof(uint64_t);

struct Block {
  uint64_t* words = nullptr;

  // What the hooks take where there is no tensor.
  View view() const {
    return {words, kBlockBytes};
  }
};

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "failed: %s (%s)\n", what, smartswap_last_error());
    std::exit(1);
  }
}

void open_engine() {
  smartswap_settings settings;
  smartswap_default_settings(&settings);
  settings.memory_bytes = kLimitBytes;
  settings.host_memory_bytes = 256 * kMiB;
  settings.min_block_bytes = kMiB;
  require(smartswap_abi_version() == SMARTSWAP_ABI_VERSION, "header and library fit");
  require(smartswap_open(&settings) == SMARTSWAP_OK, "smartswap_open");
}

// An operator with an output of its own: hooks around the work, as in an operator of PyTorch.
Block fill(uint64_t seed) {
  auto& swap = NPUSwapManager::GetInstance();
  swap.BeginHook("fill");
  Block made;
  made.words = static_cast<uint64_t*>(smartswap_allocate(kBlockBytes, 0));
  require(made.words != nullptr, "smartswap_allocate");
  swap.TensorHook(made.view(), SMARTSWAP_WRITE);
  for (size_t index = 0; index < kWords; ++index) {
    made.words[index] = seed * 1000003 + index;
  }
  swap.PostHook();
  swap.EndHook();
  return made;
}

// The same in a scope: what it touched is let go when the scope ends, whatever is thrown in it.
void add(const Block& target, const Block& source) {
  SwapOp op("add");
  op.Tensor(target.view(), SMARTSWAP_READ_WRITE);
  op.Tensor(std::vector<View>{source.view()}, SMARTSWAP_READ);
  for (size_t index = 0; index < kWords; ++index) {
    target.words[index] += source.words[index];
  }
}

bool holds(const Block& block, uint64_t sum) {
  SwapOp op("check");
  op.Tensor(block.view(), SMARTSWAP_READ);
  uint64_t wrong = 0;
  for (size_t index = 0; index < kWords; ++index) {
    wrong += block.words[index] != sum * 1000003 + 4 * index;
  }
  return wrong == 0;
}

}  // namespace

int main() {
  open_engine();
  std::vector<Block> blocks;
  for (uint64_t seed = 0; seed < kBlocks; ++seed) {
    blocks.push_back(fill(seed));
  }
  // Three steps, after which each block is the sum of itself and three that never change.
  std::vector<Block> steady;
  for (uint64_t seed = 100; seed < 103; ++seed) {
    steady.push_back(fill(seed));
  }
  for (const Block& source : steady) {
    for (const Block& target : blocks) {
      add(target, source);
    }
    require(smartswap_step() == SMARTSWAP_OK, "smartswap_step");
  }
  for (uint64_t seed = 0; seed < kBlocks; ++seed) {
    require(holds(blocks[seed], seed + 100 + 101 + 102), "the bytes are right");
  }
  smartswap_stats stats = {};
  stats.struct_size = sizeof(stats);
  require(smartswap_get_stats(&stats) == SMARTSWAP_OK, "smartswap_get_stats");
  require(stats.requested.peak > 4 * kLimitBytes, "it used more than four times its cap");
  require(stats.reserved.peak <= kLimitBytes, "it stayed below its cap");
  require(stats.swapped_in_bytes > 2 * kBlocks * kBlockBytes, "blocks went and came");
  for (const auto* list : {&blocks, &steady}) {
    for (const Block& block : *list) {
      require(smartswap_free(block.words) == SMARTSWAP_OK, "smartswap_free");
    }
  }
  require(smartswap_close() == SMARTSWAP_OK, "smartswap_close");
  std::printf(
      "%" PRIu64 " MiB in %" PRIu64 " MiB: %" PRIu64 " MiB went out, %" PRIu64 " MiB came in\n",
      stats.requested.peak / kMiB, stats.limit_bytes / kMiB, stats.swapped_out_bytes / kMiB,
      stats.swapped_in_bytes / kMiB);
  return 0;
}
