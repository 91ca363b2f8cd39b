// The engine as the allocator of CPU tensors, over its software device.
#include "allocators.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "engine.h"
#include "observer.h"
#include "outside.h"
#include "replay.h"
#include "shortage.h"

namespace smartswap {

namespace {

// Above all others, so that nobody replaces it by chance.
constexpr uint8_t kPriority = 255;

c10::Allocator* allocator_before = nullptr;

void delete_memory(void* memory) {
  // A forked child has only copies of the engine's tables, and ends soon.
  if (memory == nullptr || in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK && allocator_before != nullptr) {
    allocator_before->raw_deleter()(memory);
  }
}

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    const auto device = c10::Device(c10::DeviceType::CPU);
    if (in_forked_child() || !attached().active.load(std::memory_order_relaxed)) {
      return allocator_before->allocate(size_bytes);
    }
    if (void* target = replay::take_target(size_bytes)) {
      return {target, target, &replay::keep, device};
    }
    observer::before_allocation(size_bytes);
    if (outside::here()) {
      // None of the software device's memory, so it does not count.
      return allocator_before->allocate(size_bytes);
    }
    if (size_bytes == 0) {
      return {nullptr, nullptr, &delete_memory, device};
    }
    void* memory = smartswap_allocate(size_bytes, 0);
    if (memory == nullptr) {
      const std::string text = smartswap_last_error();
      shortage::note(size_bytes);
      raise(SMARTSWAP_OUT_OF_MEMORY, text);
    }
    replay::note_allocation(memory, size_bytes);
    return {memory, memory, &delete_memory, device};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_memory;
  }

  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    default_copy_data(target, source, size_bytes);
  }
};

CpuAllocator& instance() {
  static CpuAllocator value;
  return value;
}

}  // namespace

void install_cpu_allocator() {
  allocator_before = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&instance(), kPriority);
}

void remove_cpu_allocator() {
  if (allocator_before != nullptr) {
    c10::SetCPUAllocator(allocator_before, kPriority);
  }
}

}  // namespace smartswap
