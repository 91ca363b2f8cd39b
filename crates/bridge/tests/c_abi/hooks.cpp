// The hooks at their edges: without an engine, out of order, out of memory, with exceptions in
// the middle, on two threads, in a forked child.
#include "NPUSwapManager.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <thread>

namespace {

using c10_npu::swap::NPUSwapManager;
using c10_npu::swap::SwapError;
using c10_npu::swap::SwapOp;
using c10_npu::swap::View;

constexpr uint64_t kMiB = 1 << 20;

void require(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "failed: %s (%s)\n", what, smartswap_last_error());
    std::exit(1);
  }
}

void fails(int code, const char* words, const std::function<void()>& call) {
  try {
    call();
  } catch (const SwapError& error) {
    require(error.code() == code, words);
    require(std::strstr(error.what(), words) != nullptr, error.what());
    return;
  }
  require(false, words);
}

void open_engine() {
  smartswap_settings settings;
  smartswap_default_settings(&settings);
  settings.memory_bytes = 4 * kMiB;
  settings.host_memory_bytes = 64 * kMiB;
  settings.min_block_bytes = 64 << 10;
  require(smartswap_open(&settings) == SMARTSWAP_OK, "smartswap_open");
}

// A type that becomes a View, as a tensor class of one's own would.
struct Own {
  void* memory;

  operator View() const {
    return {memory, kMiB};
  }
};

}  // namespace

int main() {
  auto& swap = NPUSwapManager::GetInstance();
  // Without an engine an operator runs as it is.
  uint64_t local = 1;
  swap.BeginHook("native");
  swap.TensorHook(View{&local, sizeof(local)});
  swap.PostHook();
  swap.EndHook();
  fails(SMARTSWAP_USAGE, "EndHook without BeginHook", [&] { swap.EndHook(); });
  fails(SMARTSWAP_USAGE, "PostHook without BeginHook", [&] { swap.PostHook(); });
  fails(SMARTSWAP_USAGE, "TensorHook without BeginHook", [&] { swap.TensorHook(View{}); });

  open_engine();
  void* memory[5];
  for (void*& block : memory) {
    SwapOp op("make");
    block = smartswap_allocate(kMiB, 0);
    require(block != nullptr, "smartswap_allocate");
    op.Tensor(View{block, kMiB});
    std::memset(block, 7, kMiB);
  }

  // Out of order: the op that was begun is ended.
  swap.BeginHook(std::string("late"));
  swap.PostHook();
  fails(SMARTSWAP_USAGE, "TensorHook after PostHook", [&] {
    swap.TensorHook(View{memory[0], kMiB});
  });
  require(swap.Depth() == 0 && smartswap_depth() == 0, "a failed hook ends its op");

  // Out of memory: so is it here, inside an op that goes on.
  swap.BeginHook("outer");
  fails(SMARTSWAP_OUT_OF_MEMORY, "the cap of 4.0 MiB", [&] {
    swap.BeginHook("inner");
    for (void* block : memory) {
      swap.TensorHook(View{block, kMiB});
    }
  });
  require(swap.Depth() == 1 && smartswap_depth() == 1, "the op around it is open");
  swap.EndHook();

  // An exception of the operator's own, and a hook that fails in a scope.
  try {
    SwapOp outer("outer");
    SwapOp inner("inner");
    inner.Tensor(View{memory[0], kMiB});
    throw 5;
  } catch (int) {
  }
  require(swap.Depth() == 0 && smartswap_depth() == 0, "scopes end their ops");
  fails(SMARTSWAP_OUT_OF_MEMORY, "the cap of 4.0 MiB", [&] {
    SwapOp op("scope");
    for (void* block : memory) {
      op.Tensor(View{block, kMiB});
    }
  });
  require(swap.Depth() == 0 && smartswap_depth() == 0, "once, not twice");

  // Lists, optionals, types of one's own; memory of others and no memory are passed over.
  swap.BeginHook("kinds");
  swap.TensorHook(std::list<View>{{memory[0], kMiB}, {nullptr, 0}, {&local, 8}});
  swap.TensorHook(std::optional<View>());
  swap.TensorHook(std::optional<Own>(Own{memory[1]}), SMARTSWAP_READ);
  require(static_cast<char*>(memory[0])[kMiB - 1] == 7, "it is there");
  require(static_cast<char*>(memory[1])[kMiB - 1] == 7, "it is there");
  swap.EndHook();

  // Each thread has ops and a stream of its own.
  swap.BeginHook("mine");
  swap.SetStream(3);
  std::thread([&] {
    require(swap.Depth() == 0, "ops belong to threads");
    fails(SMARTSWAP_USAGE, "EndHook without BeginHook", [&] { swap.EndHook(); });
    SwapOp op("theirs");
  }).join();
  swap.SetStream(std::nullopt);
  swap.EndHook();

  // The engine is its process's alone.
  const pid_t child = fork();
  if (child == 0) {
    const bool alone = smartswap_is_open() == 0 && smartswap_trim() == SMARTSWAP_USAGE &&
        std::strstr(smartswap_last_error(), "of which this one is a fork") != nullptr;
    swap.BeginHook("in a fork");
    swap.TensorHook(View{memory[0], kMiB});
    swap.EndHook();
    _exit(alone ? 42 : 1);
  }
  int status = 0;
  require(waitpid(child, &status, 0) == child, "waitpid");
  require(WIFEXITED(status) && WEXITSTATUS(status) == 42, "a fork leaves the engine alone");

  for (void* block : memory) {
    require(smartswap_free(block) == SMARTSWAP_OK, "smartswap_free");
  }
  require(smartswap_close() == SMARTSWAP_OK, "smartswap_close");
  std::puts("the hooks hold");
  return 0;
}
