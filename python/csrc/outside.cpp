// How much of the cap is outside, and which threads are.
#include "outside.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <string>

#include "observer.h"

namespace smartswap::outside {

namespace {

thread_local uint32_t depth = 0;
thread_local bool not_here = false;
std::atomic<uint32_t> entered{0};

struct Count {
  // Held while PyTorch's allocator is at work, so that what it takes is known to be of one call.
  std::mutex lock;
  // The one that something was taken from.
  const Source* source = nullptr;
  uint64_t counted_bytes = 0;
  // Idle and yet not given back, as what a graph's pool keeps for its runs.
  uint64_t kept_bytes = 0;
};

Count& count() {
  // Never destroyed: tensors are made until the process ends.
  static auto& value = *new Count();
  return value;
}

int set(uint64_t size_bytes) {
  if (size_bytes == count().counted_bytes) {
    return SMARTSWAP_OK;
  }
  const int code = smartswap_set_outside(size_bytes);
  if (code == SMARTSWAP_OK) {
    count().counted_bytes = size_bytes;
  }
  return code;
}

// What PyTorch's allocators take from the driver at once for so much, unless settings of theirs
// ask for more.
uint64_t taken_for(uint64_t size_bytes) {
  constexpr uint64_t mib = 1 << 20;
  // torch_npu adds a little to what it is asked for.
  size_bytes += 64;
  if (size_bytes <= mib) {
    return 2 * mib;
  }
  return size_bytes < 10 * mib ? 20 * mib : (size_bytes + 2 * mib - 1) / (2 * mib) * (2 * mib);
}

}  // namespace

bool here() {
  return depth > 0;
}

bool anywhere() {
  return entered.load(std::memory_order_relaxed) > 0;
}

void enter() {
  ++depth;
  open_pool();
}

void leave() {
  close_pool();
  --depth;
}

void open_pool() {
  ++entered;
  if (attached().active) {
    // What makes room must not be in use unseen.
    observer::watch_again();
  }
}

void close_pool() {
  --entered;
}

bool is_not() {
  return not_here;
}

Not::Not() : depth_(std::exchange(depth, 0)), outer_(std::exchange(not_here, true)) {}

Not::~Not() {
  depth = depth_;
  not_here = outer_;
}

Charge::Charge(const Source& source, uint64_t size_bytes) : source_(source) {
  const uint64_t more_bytes = taken_for(size_bytes);
  observer::before_allocation(size_bytes);
  count().lock.lock();
  count().source = &source;
  int code = set(source.held_bytes() + more_bytes);
  if (code == SMARTSWAP_OUT_OF_MEMORY && source.idle_bytes() > 0) {
    source.give_back();
    code = set(source.held_bytes() + more_bytes);
  }
  if (code != SMARTSWAP_OK) {
    const std::string text = smartswap_last_error();
    count().lock.unlock();
    raise(code, text);
  }
}

Charge::~Charge() {
  try {
    if (set(source_.held_bytes()) != SMARTSWAP_OK) {
      // There is an error already, and what was taken is idle.
      source_.give_back();
      set(source_.held_bytes());
    }
  } catch (const c10::Error&) {
    // The next step's end tries again.
  }
  count().lock.unlock();
}

void Charge::settle() {
  check(set(source_.held_bytes()));
}

void trim() {
  const std::lock_guard<std::mutex> guard(count().lock);
  if (count().source == nullptr || count().counted_bytes == 0) {
    return;
  }
  const auto& source = *count().source;
  if (source.idle_bytes() > count().kept_bytes) {
    source.give_back();
  }
  count().kept_bytes = source.idle_bytes();
  check(set(source.held_bytes()));
}

uint64_t counted_bytes() {
  const std::lock_guard<std::mutex> guard(count().lock);
  return count().counted_bytes;
}

void forget() {
  const std::lock_guard<std::mutex> guard(count().lock);
  count().source = nullptr;
  count().counted_bytes = count().kept_bytes = 0;
}

}  // namespace smartswap::outside
