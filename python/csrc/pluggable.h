// What the functions of the pluggable allocators do, whatever their framework calls them.
#pragma once

#include "device_allocator.h"

#define SMARTSWAP_EXPORT extern "C" __attribute__((visibility("default")))

namespace smartswap::pluggable {

// Memory that is used on a stream first. Throws OutOfMemoryError with the engine's text.
inline void* allocate(size_t size_bytes, uint64_t stream) {
  if (size_bytes == 0) {
    return nullptr;
  }
  void* memory = smartswap_allocate(size_bytes, stream);
  if (memory == nullptr) {
    const std::string text = smartswap_last_error();
    shortage::note(size_bytes);
    raise(SMARTSWAP_OUT_OF_MEMORY, text);
  }
  return memory;
}

// Called by the deleters of tensors, which must not throw.
inline void release(void* memory) {
  if (memory == nullptr || in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK) {
    TORCH_WARN("SmartSwap: ", smartswap_last_error());
  }
}

inline void require_engine() {
  TORCH_CHECK(
      smartswap_is_open() != 0,
      "SmartSwap: the engine is not open: call smartswap_open before the device is used");
  watch_forks();
}

// The start of the block around `memory`, and its bytes if they are asked for.
inline void* require_base(const void* memory, size_t* size_bytes) {
  check(smartswap_find(memory, nullptr, nullptr));
  return base_of(memory, size_bytes);
}

inline void use_on(const void* memory, uint64_t stream) {
  if (memory != nullptr) {
    check(smartswap_use_on(memory, stream));
  }
}

}  // namespace smartswap::pluggable
