// The engine as torch_npu's allocator: its interface subclassed, so that statistics, streams and
// out-of-memory errors are the framework's own.
#include "npu_allocator.h"

#ifdef SMARTSWAP_NPU

#include <ATen/Context.h>
#include <torch/version.h>
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>
#include <torch_npu/csrc/core/npu/NPUFunctions.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "npu_release.h"
#include "outside.h"
#include "replay.h"

// From here on the interface has functions for free memory and refused allocations.
#define SMARTSWAP_NPU_2_14 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14)

#if SMARTSWAP_NPU_2_14
// The interface has bodies of its own that call these, and its library keeps them to itself. Our
// class replaces those bodies, so nobody calls them; but without this they would have to be found
// when the module is loaded.
__asm__(
    ".weak _ZN7c10_npu21getDeviceErrorMessageB5cxx11Ei\n"
    ".weak _ZN7c10_npu3acl20AclrtPeekAtLastErrorE17aclrtLastErrLevel\n"
    ".weak _ZN7c10_npu6option12oom_observerEllll\n"
    ".weak _ZN7c10_npu6option14OptionsManager19IsOomSnapshotEnableEv\n"
    ".weak _ZN7c10_npu6option14OptionsManager20IsCompactErrorOutputEv\n"
    ".weak _ZN7c10_npu9isCannOOMERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\n");
#endif

// The headers call it and their library keeps it to itself: the code of an error, as torch_npu
// writes it.
std::string formatErrorCode(SubModule, ErrCode code) {
  return "\n[ERROR] torch_npu, code " + std::to_string(static_cast<int>(code));
}

namespace smartswap {

namespace {

namespace caching = c10_npu::NPUCachingAllocator;
using npu::before;
using npu::StatsIndex;

void delete_memory(void* memory) {
  if (memory == nullptr || in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK) {
    before->raw_delete(memory);
  }
}

// As torch_npu's own macro, which needs functions that its library keeps to itself.
void check_device(int code, const char* call) {
  TORCH_CHECK(code == ACL_SUCCESS, "SmartSwap: ", call, " failed with code ", code);
}

// Free and total bytes of the current device.
std::pair<size_t, size_t> memory_info() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  check_device(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total_bytes), "aclrtGetMemInfo");
  return {free_bytes, total_bytes};
}

Taken taken_before() {
  constexpr auto all = static_cast<size_t>(caching::StatType::AGGREGATE);
  return taken(before->getDeviceStats(static_cast<StatsIndex>(attached().index)), all);
}

// Memory outside of the engine is that of `before`.
constexpr outside::Source kOutside{
    [] { return taken_before().held_bytes; },
    [] { return taken_before().idle_bytes; },
    [] { before->emptyCache(true); }};

constexpr char kGraphs[] = "NPU graphs and memory pools need memory that stays: train without them";

class NpuAllocator final : public npu::Interface {
 public:
  using npu::Interface::emptyCache;

  c10::DataPtr allocate(size_t size_bytes) override {
    const int device = current_device();
    if (!is_ours(device)) {
      return before->allocate(size_bytes);
    }
    const auto index = static_cast<c10::DeviceIndex>(device);
    const auto place = c10::Device(c10::DeviceType::PrivateUse1, index);
    if (void* target = replay::take_target(size_bytes)) {
      return {target, target, &replay::keep, place};
    }
    if (size_bytes > 0 && outside::here()) {
      return outside::allocate(kOutside, size_bytes, [&] { return before->allocate(size_bytes); });
    }
    void* memory = nullptr;
    if (size_bytes > 0) {
      memory = take(size_bytes, c10_npu::getCurrentNPUStream(device).stream());
    }
    return {memory, memory, &delete_memory, place};
  }

  c10::DataPtr allocate_with_aligned(size_t size_bytes, size_t base_aligned_kb) const override {
    if (!is_ours(current_device())) {
      return before->allocate_with_aligned(size_bytes, base_aligned_kb);
    }
    refuse("memory with an alignment of its own is not supported");
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_memory;
  }

  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    int failed = ACL_SUCCESS;
    copy_as_op(target, source, [&] {
      const auto stream = c10_npu::getCurrentNPUStream(attached().index).stream();
      failed = aclrtMemcpyAsync(
          target, size_bytes, source, size_bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, stream);
    });
    check_device(failed, "aclrtMemcpyAsync");
  }

  void* raw_alloc(size_t size_bytes) override {
    return raw_alloc_with_stream(
        size_bytes, c10_npu::getCurrentNPUStream(current_device()).stream());
  }

  void* raw_alloc_with_stream(size_t size_bytes, aclrtStream stream) override {
    if (!is_ours(current_device())) {
      return before->raw_alloc_with_stream(size_bytes, stream);
    }
    if (size_bytes == 0) {
      return nullptr;
    }
    if (outside::here()) {
      const auto take = [&] { return before->raw_alloc_with_stream(size_bytes, stream); };
      return outside::allocate(kOutside, size_bytes, take);
    }
    void* memory = take(size_bytes, stream);
    // Whoever wants no tensor uses it where no operator says so.
    check(smartswap_hold(memory, handle_of(stream), "raw_alloc"));
    return memory;
  }

  void raw_delete(void* memory) override {
    delete_memory(memory);
  }

  void init(int device_count) override {
    before->init(device_count);
  }

  bool initialized() override {
    return before->initialized();
  }

#if SMARTSWAP_NPU_2_14
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return is_ours(device) ? memory_info() : before->getMemoryInfo(device);
  }
#endif

  double getMemoryFraction(int device) override {
    if (!is_ours(device)) {
      return before->getMemoryFraction(device);
    }
    const auto total = static_cast<double>(memory_info().second);
    return static_cast<double>(engine_stats().limit_bytes) / total;
  }

  void setMemoryFraction(double fraction, int device) override {
    if (!is_ours(device)) {
      before->setMemoryFraction(fraction, device);
      return;
    }
    warn_of_fraction(fraction);
  }

  void emptyCacheImpl(bool check_error, bool free_physical) override {
    trim();
    before->emptyCacheImpl(check_error, free_physical);
  }

  void emptyCache(bool check_error) override {
    trim();
    before->emptyCache(check_error);
    outside::trim();
  }

  void emptyVirtAddrCache(bool check_error) override {
    // Addresses of the engine are given back with its memory.
    trim();
    before->emptyVirtAddrCache(check_error);
  }

  void cacheInfo(int device, size_t* cached_and_free, size_t* largest) override {
    if (!is_ours(device)) {
      before->cacheInfo(device, cached_and_free, largest);
      return;
    }
    const auto now = engine_stats();
    *cached_and_free = now.reserved.current - now.active.current;
    *largest = now.limit_bytes - now.active.current;
  }

  void* getBaseAllocation(void* memory, size_t* size_bytes) override {
    void* start = base_of(memory, size_bytes);
    return start != nullptr ? start : before->getBaseAllocation(memory, size_bytes);
  }

  void recordStream(const c10::DataPtr& data, c10_npu::NPUStream stream) override {
    if (data.get() == nullptr) {
      return;
    }
    if (data.get_deleter() != &delete_memory || !is_ours(data.get())) {
      before->recordStream(data, stream);
      return;
    }
    check(smartswap_use_on(data.get(), handle_of(stream.stream())));
  }

  void eraseStream(const c10::DataPtr& data, c10_npu::NPUStream stream) override {
    // The engine's memory is ordered behind the stream until it is freed: more than is asked.
    if (data.get() != nullptr && !is_ours(data.get())) {
      before->eraseStream(data, stream);
    }
  }

  void eraseStreamWithBlockPtr(void* block, c10_npu::NPUStream stream, void* work) override {
    if (!is_ours(block)) {
      before->eraseStreamWithBlockPtr(block, stream, work);
    }
  }

  // The name under which HCCL gives the memory back to the functions around this one.
  void* getBlockPtr(const c10::DataPtr& data) override {
    return is_ours(data.get()) ? data.get() : before->getBlockPtr(data);
  }

  void recordHcclWorkForBlock(void* block, void* work) override {
    if (!is_ours(block)) {
      before->recordHcclWorkForBlock(block, work);
      return;
    }
    // The collective works on it after its op has ended, where no op says so.
    check(smartswap_hold(block, current_stream(), "a collective"));
  }

  caching::DeviceStats getDeviceStats(StatsIndex device) override {
    if (!is_ours(device)) {
      return before->getDeviceStats(device);
    }
    return device_stats<caching::DeviceStats>(
        static_cast<size_t>(caching::StatType::AGGREGATE),
        static_cast<size_t>(caching::StatType::LARGE_POOL), out_of_memory_.count());
  }

  void resetAccumulatedStats(StatsIndex device) override {
    if (!is_ours(device)) {
      before->resetAccumulatedStats(device);
      return;
    }
    TORCH_WARN_ONCE("SmartSwap: accumulated memory statistics are not reset: they are not kept");
  }

  void resetPeakStats(StatsIndex device) override {
    if (is_ours(device)) {
      check(smartswap_reset_peaks());
    } else {
      before->resetPeakStats(device);
    }
  }

#if SMARTSWAP_NPU_2_14
  caching::SnapshotInfo snapshot(c10_npu::MempoolId_t pool) override {
    auto info = before->snapshot(pool);
#else
  caching::SnapshotInfo snapshot() override {
    auto info = before->snapshot();
#endif
    list_segments(info.segments);
    return info;
  }

  void beginAllocateToPool(
      c10::DeviceIndex, c10_npu::MempoolId_t, std::function<bool(aclrtStream)>) override {
    refuse(kGraphs);
  }

  void endAllocateToPool(c10::DeviceIndex, c10_npu::MempoolId_t) override {
    refuse(kGraphs);
  }

  // There are none, and this is called where nothing may be thrown.
  void releasePool(c10::DeviceIndex, c10_npu::MempoolId_t) override {}

  void FreeDeviceCachedMemory(int device) override {
    if (is_ours(device)) {
      trim();
    } else {
      before->FreeDeviceCachedMemory(device);
    }
  }

  std::string name() override {
    return "smartswap";
  }

  caching::ShareableHandle shareIpcHandle(void* memory) override {
    if (!is_ours(memory)) {
      return before->shareIpcHandle(memory);
    }
    refuse(kNoSharing);
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return before->getIpcDevPtr(std::move(handle));
  }

  bool isHistoryEnabled() override {
    return before->isHistoryEnabled();
  }

  void recordHistory(
      bool enabled, caching::CreateContextFn context, size_t max_entries,
      caching::RecordContext when) override {
    if (enabled) {
      warn_of_history();
    }
    before->recordHistory(enabled, context, max_entries, when);
  }

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    out_of_memory_.attach(std::move(observer));
  }

#if SMARTSWAP_NPU_2_14
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    // It is told of the other devices' allocations alone: the engine rejects none beforehand.
    before->attachOomRejectionObserver(std::move(observer));
  }
#endif

  bool checkUceInMemPool(int device) override {
    if (!is_ours(device)) {
      return before->checkUceInMemPool(device);
    }
    refuse(kMemoryErrors);
  }

  bool checkBlockIsSafe(const c10::DataPtr& data) override {
    if (!is_ours(data.get())) {
      return before->checkBlockIsSafe(data);
    }
    refuse(kMemoryErrors);
  }

  void markAllBlockUnsafe(int device) override {
    if (!is_ours(device)) {
      before->markAllBlockUnsafe(device);
      return;
    }
    refuse(kMemoryErrors);
  }

  void updateBlockToSafe(const c10::DataPtr& data) override {
    if (!is_ours(data.get())) {
      before->updateBlockToSafe(data);
      return;
    }
    refuse(kMemoryErrors);
  }

  void cleanEvent() override {
    // The engine's events are in no list that a restarted device would leave behind.
    before->cleanEvent();
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(
      c10::DeviceIndex, c10_npu::MempoolId_t) override {
    refuse(kGraphs);
  }

  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<caching::AllocatorState>) override {
    refuse(kGraphs);
  }

  void* take(size_t size_bytes, aclrtStream stream) {
    observer::before_allocation(size_bytes);
    void* memory = smartswap_allocate(size_bytes, handle_of(stream));
    if (memory == nullptr) {
      out_of_memory_.fail(size_bytes, &memory_info);
    }
    replay::note_allocation(memory, size_bytes);
    return memory;
  }

 private:
  static constexpr char kMemoryErrors[] =
      "recovery from uncorrectable memory errors is not supported: restart from a checkpoint";

  static int current_device() {
    int device = 0;
    check_device(c10_npu::GetDevice(&device), "GetDevice");
    return device;
  }

  OutOfMemory<caching::OutOfMemoryObserver> out_of_memory_;
};

// PyTorch's own list of allocators, for storages that no operator makes: what is loaded from files.
constexpr uint8_t kPriority = 255;
c10::Allocator* listed_before = nullptr;

void list(c10::Allocator* allocator) {
  c10::SetAllocator(c10::DeviceType::PrivateUse1, allocator, kPriority);
}

NpuAllocator& instance() {
  // Never destroyed: tensors are freed until the process ends.
  static NpuAllocator* value = new NpuAllocator();
  return *value;
}

}  // namespace

void install_npu_allocator() {
  if (before == nullptr) {
    before = caching::allocator.load();
    listed_before = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  }
  caching::allocator.store(&instance());
  list(&instance());
}

void remove_npu_allocator() {
  if (before != nullptr) {
    caching::allocator.store(before);
    list(listed_before);
  }
}

uint64_t default_npu_stream(int device) {
  // With its queue on, torch_npu gives ops to their streams later and on another thread, so that
  // nothing the engine orders on a stream would come where it belongs.
  const char* queue = std::getenv("TASK_QUEUE_ENABLE");
  TORCH_CHECK_VALUE(
      queue != nullptr && std::string(queue) == "0",
      "SmartSwap: set TASK_QUEUE_ENABLE=0 before torch_npu is imported: operators must reach "
      "their stream when they are called");
  // torch_npu wakes with the first tensor, and has no streams before.
  at::globalContext().lazyInitDevice(c10::DeviceType::PrivateUse1);
  const auto index = static_cast<c10::DeviceIndex>(device);
  return handle_of(c10_npu::getDefaultNPUStream(index).stream());
}

uint64_t current_npu_stream() {
  return handle_of(c10_npu::getCurrentNPUStream(attached().index).stream());
}

}  // namespace smartswap

#endif  // SMARTSWAP_NPU
