// The engine as PyTorch's CUDA allocator: its interface subclassed, so that statistics, streams
// and out-of-memory errors are PyTorch's own.
#include "allocators.h"

#ifdef SMARTSWAP_CUDA

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <vector>

#include "engine.h"
#include "observer.h"
#include "replay.h"

namespace smartswap {

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::CUDAAllocator;

// The allocator from before: it serves other devices, and what was allocated by it.
CUDAAllocator* before = nullptr;

void delete_memory(void* memory) {
  if (memory == nullptr || in_forked_child()) {
    return;
  }
  if (smartswap_free(memory) != SMARTSWAP_OK) {
    before->raw_delete(memory);
  }
}

uint64_t handle_of(cudaStream_t stream) {
  return reinterpret_cast<uint64_t>(stream);
}

[[noreturn]] void refuse(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "SmartSwap: ", what);
}

c10::CachingAllocator::Stat stat_of(const smartswap_bytes& bytes) {
  c10::CachingAllocator::Stat stat;
  stat.current = static_cast<int64_t>(bytes.current);
  stat.peak = static_cast<int64_t>(bytes.peak);
  stat.allocated = stat.peak;
  stat.freed = stat.allocated - stat.current;
  return stat;
}

class CudaAllocator final : public CUDAAllocator {
 public:
  c10::DataPtr allocate(size_t size_bytes) override {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    if (!is_ours(device)) {
      return before->allocate(size_bytes);
    }
    const auto place = c10::Device(c10::DeviceType::CUDA, device);
    if (void* target = replay::take_target(size_bytes)) {
      return {target, target, &replay::keep, place};
    }
    void* memory = nullptr;
    if (size_bytes > 0) {
      memory = take(size_bytes, c10::cuda::getCurrentCUDAStream(device).stream());
    }
    return {memory, memory, &delete_memory, place};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_memory;
  }

  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    check(smartswap_begin("smartswap::copy_data", current_stream(), SMARTSWAP_STEP));
    int code = smartswap_touch(source, SMARTSWAP_READ);
    if (code == SMARTSWAP_OK) {
      code = smartswap_touch(target, SMARTSWAP_UNKNOWN);
    }
    if (code != SMARTSWAP_OK) {
      const std::string text = smartswap_last_error();
      smartswap_end();
      raise(code, text);
    }
    const auto stream = c10::cuda::getCurrentCUDAStream(attached().index).stream();
    const auto failed =
        cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDeviceToDevice, stream);
    check(smartswap_end());
    C10_CUDA_CHECK(failed);
  }

  void* raw_alloc(size_t size_bytes) override {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return raw_alloc_with_stream(size_bytes, c10::cuda::getCurrentCUDAStream(device).stream());
  }

  void* raw_alloc_with_stream(size_t size_bytes, cudaStream_t stream) override {
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    if (!is_ours(device)) {
      return before->raw_alloc_with_stream(size_bytes, stream);
    }
    return size_bytes == 0 ? nullptr : take(size_bytes, stream);
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

  double getMemoryFraction(c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      return before->getMemoryFraction(device);
    }
    const auto total = static_cast<double>(getMemoryInfo(device).second);
    return static_cast<double>(stats().limit_bytes) / total;
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      before->setMemoryFraction(fraction, device);
      return;
    }
    TORCH_WARN_ONCE(
        "SmartSwap: the cap stays what smartswap was enabled with; a memory fraction of ",
        fraction, " is not taken");
  }

  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(
      c10::DeviceIndex device) override {
    return is_ours(device) ? std::vector<caching::StreamSegmentSize>()
                           : before->getExpandableSegmentSizes(device);
  }

  void enable(bool value) override {
    before->enable(value);
  }

  bool isEnabled() const override {
    return before->isEnabled();
  }

  void emptyCache(c10::MempoolId_t pool) override {
    if (attached().active) {
      check(smartswap_trim());
    }
    before->emptyCache(pool);
  }

  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    if (!is_ours(device)) {
      before->cacheInfo(device, largest);
      return;
    }
    const auto now = stats();
    *largest = now.limit_bytes - now.active.current;
  }

  void* getBaseAllocation(void* memory, size_t* size_bytes) override {
    void* start = nullptr;
    uint64_t bytes = 0;
    if (smartswap_find(memory, &start, &bytes) != SMARTSWAP_OK) {
      return before->getBaseAllocation(memory, size_bytes);
    }
    if (size_bytes != nullptr) {
      *size_bytes = bytes;
    }
    return start;
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr) {
      return;
    }
    if (data.get_deleter() != &delete_memory ||
        smartswap_find(data.get(), nullptr, nullptr) != SMARTSWAP_OK) {
      before->recordStream(data, stream);
      return;
    }
    check(smartswap_use_on(data.get(), handle_of(stream.stream())));
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      return before->getDeviceStats(device);
    }
    const auto now = stats();
    c10::CachingDeviceAllocator::DeviceStats result;
    const auto aggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto large = static_cast<size_t>(c10::CachingAllocator::StatType::LARGE_POOL);
    for (const size_t kind : {aggregate, large}) {
      // What live tensors hold, wherever their bytes are now.
      result.allocated_bytes[kind] = stat_of(now.allocated);
      result.requested_bytes[kind] = stat_of(now.requested);
      result.active_bytes[kind] = stat_of(now.active);
      result.reserved_bytes[kind] = stat_of(now.reserved);
      result.allocation[kind].allocated = static_cast<int64_t>(now.allocations);
    }
    result.num_alloc_retries = static_cast<int64_t>(now.rescues);
    result.num_ooms = out_of_memory_count_;
    return result;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      before->resetAccumulatedStats(device);
    }
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    if (is_ours(device)) {
      check(smartswap_reset_peaks());
    } else {
      before->resetPeakStats(device);
    }
  }

  caching::SnapshotInfo snapshot(c10::MempoolId_t, bool) override {
    refuse("memory snapshots are not supported: smartswap.explain() says what is where");
  }

  void beginAllocateToPool(
      c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) override {
    refuse("CUDA graphs and memory pools need memory that stays: train without them");
  }

  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {
    refuse("CUDA graphs and memory pools need memory that stays: train without them");
  }

  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {}

  caching::ShareableHandle shareIpcHandle(void*) override {
    refuse("device memory cannot be shared between processes: send the tensor's .cpu()");
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return before->getIpcDevPtr(std::move(handle));
  }

  bool isHistoryEnabled() override {
    return false;
  }

  void recordHistory(
      bool enabled, c10::CachingDeviceAllocator::CreateContextFn, size_t,
      c10::CachingDeviceAllocator::RecordContext, bool,
      const std::vector<std::string>&) override {
    if (enabled) {
      refuse("memory history is not supported: smartswap.explain() says what is where");
    }
  }

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    const std::lock_guard<std::mutex> guard(lock_);
    observers_.push_back(std::move(observer));
  }

  void attachAllocatorTraceTracker(
      c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override {
    // It is told of the other devices' allocations alone.
    before->attachAllocatorTraceTracker(std::move(tracker));
  }

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override {
    before->enablePeerAccess(device, other);
  }

  cudaError_t memcpyAsync(
      void* target, int target_device, const void* source, int source_device, size_t count,
      cudaStream_t stream, bool peer_access) override {
    if (target_device == source_device) {
      return cudaMemcpyAsync(target, source, count, cudaMemcpyDeviceToDevice, stream);
    }
    if (is_ours(target_device) || is_ours(source_device)) {
      // The engine's memory is mapped on its own device alone.
      return cudaMemcpyPeerAsync(target, target_device, source, source_device, count, stream);
    }
    return before->memcpyAsync(
        target, target_device, source, source_device, count, stream, peer_access);
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(
      c10::DeviceIndex, c10::MempoolId_t) override {
    refuse("CUDA graphs need memory that stays: train without them");
  }

  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex, std::shared_ptr<caching::AllocatorState>) override {
    refuse("CUDA graphs need memory that stays: train without them");
  }

  std::string name() override {
    return "smartswap";
  }

 private:
  static bool is_ours(int device) {
    return device == attached().index && attached().active.load(std::memory_order_relaxed) &&
        !in_forked_child();
  }

  static smartswap_stats stats() {
    smartswap_stats now = {};
    now.struct_size = sizeof(now);
    check(smartswap_get_stats(&now));
    return now;
  }

  void* take(size_t size_bytes, cudaStream_t stream) {
    observer::before_allocation(size_bytes);
    void* memory = smartswap_allocate(size_bytes, handle_of(stream));
    if (memory == nullptr) {
      fail(size_bytes);
    }
    replay::note_allocation(memory);
    return memory;
  }

  [[noreturn]] void fail(size_t size_bytes) {
    const std::string text = smartswap_last_error();
    std::vector<caching::OutOfMemoryObserver> observers;
    {
      const std::lock_guard<std::mutex> guard(lock_);
      ++out_of_memory_count_;
      observers = observers_;
    }
    const auto [free_bytes, total_bytes] = getMemoryInfo(attached().index);
    for (const auto& observer : observers) {
      observer(attached().index, size_bytes, total_bytes, free_bytes);
    }
    raise(SMARTSWAP_OUT_OF_MEMORY, text);
  }

  std::mutex lock_;
  std::vector<caching::OutOfMemoryObserver> observers_;
  int64_t out_of_memory_count_ = 0;
};

CudaAllocator& instance() {
  // Never destroyed: tensors are freed until the process ends.
  static CudaAllocator* value = new CudaAllocator();
  return *value;
}

}  // namespace

void install_cuda_allocator() {
  if (before == nullptr) {
    before = caching::allocator.load();
  }
  caching::allocator.store(&instance());
}

void remove_cuda_allocator() {
  if (before != nullptr) {
    caching::allocator.store(before);
  }
}

}  // namespace smartswap

#endif  // SMARTSWAP_CUDA
