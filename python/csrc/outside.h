// Memory of PyTorch's own allocator beside the engine's: for tensors that go to other processes,
// or to libraries that want memory of a kind of their own. It stays where it is. On an accelerator
// the engine counts it towards the cap.
#pragma once

#include <cstdint>
#include <utility>

#include "engine.h"

namespace smartswap::outside {

// Whether this thread's tensors get memory outside of the engine, and whether those of any do.
bool here();
bool anywhere();
// From now on they do, until the thread has left as often as it entered.
void enter();
void leave();
// From now on those of some thread may, as a pool is open that has its own rule for whose.
void open_pool();
void close_pool();
// Whether somebody else's work runs on this thread: see Not.
bool is_not();

// While it lasts they get the engine's all the same: somebody else's work runs on this thread.
class Not {
 public:
  Not();
  ~Not();
  Not(const Not&) = delete;
  Not& operator=(const Not&) = delete;

 private:
  uint32_t depth_;
  bool outer_;
};

// PyTorch's own allocator of the engine's device, asked for what it has taken from the driver, and
// for what of that it would give back.
struct Source {
  uint64_t (*held_bytes)();
  uint64_t (*idle_bytes)();
  void (*give_back)();
};

// Counts what an allocation of `size_bytes` may take, for which others leave the device. Throws
// where they cannot. When it is over, what was taken counts.
class Charge {
 public:
  Charge(const Source& source, uint64_t size_bytes);
  ~Charge();
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  // What was taken counts from now on. Throws if that is more than there is room for.
  void settle();

 private:
  const Source& source_;
};

template <class Take>
auto allocate(const Source& source, uint64_t size_bytes, Take take) {
  Charge charge(source, size_bytes);
  auto memory = take();
  charge.settle();
  return memory;
}

// Gives back what is outside and idle. Call it at the end of each step, and where unused memory
// shall go back to the driver.
void trim();

// What counts towards the cap.
uint64_t counted_bytes();

// The engine is closed: nothing counts any more.
void forget();

}  // namespace smartswap::outside
