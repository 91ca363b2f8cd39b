// Which operators belong to a training step: told by gradients, and by what came before others.
#include "step_bounds.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace smartswap::step_bounds {

namespace {

// An operator ran with gradients on.
std::atomic<bool> has_begun{false};
// Operators without gradients before that.
std::atomic<uint64_t> before{0};
// As many of these are of the step.
std::atomic<uint64_t> before_max{0};
// What came before the last step. A model is made before the first one, which tells nothing.
constexpr uint64_t unknown = std::numeric_limits<uint64_t>::max();
std::atomic<uint64_t> before_last{0};
std::atomic<bool> is_first{true};

}  // namespace

bool has_next() {
  if (has_begun.load(std::memory_order_relaxed)) {
    return true;
  }
  if (!at::GradMode::is_enabled()) {
    const uint64_t number = before.fetch_add(1, std::memory_order_relaxed);
    return number < before_max.load(std::memory_order_relaxed);
  }
  has_begun.store(true, std::memory_order_relaxed);
  return true;
}

void end_step() {
  has_begun.store(false, std::memory_order_relaxed);
  const uint64_t now = before.exchange(0, std::memory_order_relaxed);
  if (is_first.exchange(false, std::memory_order_relaxed)) {
    before_last.store(unknown, std::memory_order_relaxed);
    return;
  }
  const uint64_t last = before_last.exchange(now, std::memory_order_relaxed);
  before_max.store(std::min(now, last), std::memory_order_relaxed);
}

}  // namespace smartswap::step_bounds
