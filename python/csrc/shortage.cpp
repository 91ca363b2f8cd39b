// Counts operators that go on without memory.
#include "shortage.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace smartswap::shortage {

namespace {

// The most that the running call asked for in vain, and the exceptions when its operator began.
thread_local uint64_t lacked_bytes = 0;
thread_local int exceptions_before = 0;

struct Without {
  std::mutex lock;
  std::map<std::string, uint64_t> counts;
};

// Never destroyed: operators run until the process ends.
Without& without() {
  static auto& value = *new Without();
  return value;
}

void tell_of(const std::string& name, uint64_t bytes) {
  auto& all = without();
  const std::lock_guard<std::mutex> guard(all.lock);
  if (all.counts[name]++ == 0) {
    TORCH_WARN(
        "SmartSwap: ",
        name,
        " found no room for ",
        bytes,
        " bytes and went on without: its numbers may differ in their last bits from those with "
        "more memory. A larger --memory gives them");
  }
}

}  // namespace

void begin() {
  lacked_bytes = 0;
  exceptions_before = std::uncaught_exceptions();
}

void note(uint64_t size_bytes) {
  lacked_bytes = std::max(lacked_bytes, size_bytes);
}

bool end(const std::string& name) {
  const auto bytes = std::exchange(lacked_bytes, 0);
  if (C10_LIKELY(bytes == 0) || std::uncaught_exceptions() > exceptions_before) {
    return false;
  }
  tell_of(name, bytes);
  return true;
}

std::map<std::string, uint64_t> went_without() {
  auto& all = without();
  const std::lock_guard<std::mutex> guard(all.lock);
  return all.counts;
}

OfAnother::OfAnother() : around_bytes_(std::exchange(lacked_bytes, 0)) {}

OfAnother::~OfAnother() {
  lacked_bytes = around_bytes_;
}

void OfAnother::check(const std::string& name) const {
  if (C10_LIKELY(lacked_bytes == 0)) {
    return;
  }
  tell_of(name, lacked_bytes);
  TORCH_CHECK_WITH(
      OutOfMemoryError, false, "it found no room for ", lacked_bytes,
      " bytes that it had the first time");
}

}  // namespace smartswap::shortage
