// Keeps operators from running whose inputs could not be brought back.
#include "refusal.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/Backtrace.h>
#include <c10/util/Logging.h>
#include <torch/csrc/utils/cpp_stacktraces.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "engine.h"

namespace smartswap {

namespace {

// Storages have a call to begin to refuse their memory, and none to end it. An explicit
// instantiation may name private members.
void stop_refusing(c10::StorageImpl& storage);

template <bool c10::StorageImpl::*refuses, void (c10::StorageImpl::*refresh)()>
struct StorageAccess {
  friend void stop_refusing(c10::StorageImpl& storage) {
    storage.*refuses = false;
    (storage.*refresh)();
    storage.get_extra_meta().custom_data_ptr_error_msg_.reset();
  }
};
template struct StorageAccess<
    &c10::StorageImpl::throw_on_immutable_data_ptr_, &c10::StorageImpl::refresh_has_data_ptr_check>;

// How many refusals want a storage to refuse. Several threads may.
struct Refused {
  std::mutex lock;
  std::unordered_map<c10::StorageImpl*, int> counts;
};

Refused& refused() {
  // Never destroyed: operators run until the process ends.
  static auto* value = new Refused();
  return *value;
}

thread_local const Refusal* innermost = nullptr;
// The exception that is made now asks for a stack trace itself.
thread_local bool is_raising = false;

}  // namespace

Refusal::Refusal(bool begun, int code, std::string text, std::vector<c10::Storage> storages)
    : begun_(begun),
      code_(code),
      text_(std::move(text)),
      storages_(std::move(storages)),
      exceptions_before_(std::uncaught_exceptions()),
      outer_(innermost) {
  const std::lock_guard<std::mutex> guard(refused().lock);
  for (const auto& storage : storages_) {
    auto* impl = storage.unsafeGetStorageImpl();
    if (refused().counts[impl]++ == 0) {
      impl->release_data_and_set_meta_custom_data_ptr_error_msg_("SmartSwap: " + text_);
    }
  }
  innermost = this;
}

Refusal::~Refusal() {
  innermost = outer_;
  const std::lock_guard<std::mutex> guard(refused().lock);
  for (const auto& storage : storages_) {
    auto* impl = storage.unsafeGetStorageImpl();
    const auto count = refused().counts.find(impl);
    if (--count->second == 0) {
      refused().counts.erase(count);
      stop_refusing(*impl);
    }
  }
}

void Refusal::ended() const {
  if (storages_.empty() || std::uncaught_exceptions() > exceptions_before_) {
    return;
  }
  std::fprintf(
      stderr,
      "SmartSwap: %s\nSmartSwap: the operator ran all the same and may have made wrong numbers, "
      "so the process ends here\n",
      text_.c_str());
  std::fflush(stderr);
  std::abort();
}

void Refusal::raise() const {
  is_raising = true;
  try {
    smartswap::raise(code_, text_);
  } catch (...) {
    is_raising = false;
    throw;
  }
}

const Refusal* Refusal::current() {
  return innermost;
}

void choose_refusal_types() {
  // Every c10::Error asks for a stack trace before it is thrown. Who wants to see those traces
  // has a fetcher of PyTorch's, and the plain type.
  static std::once_flag once;
  std::call_once(once, [] {
    if (torch::get_cpp_stacktraces_enabled()) {
      return;
    }
    c10::SetStackTraceFetcher([]() -> c10::Backtrace {
      if (innermost != nullptr && !is_raising) {
        innermost->raise();
      }
      return c10::get_lazy_backtrace(/*frames_to_skip=*/1);
    });
  });
}

}  // namespace smartswap
