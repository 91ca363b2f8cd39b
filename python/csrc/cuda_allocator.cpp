// The engine as PyTorch's CUDA allocator: its interface subclassed, so that statistics, streams
// and out-of-memory errors are PyTorch's own.
#include "allocators.h"

#ifdef SMARTSWAP_CUDA

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cuda_workspaces.h"
#include "device_allocator.h"
#include "graphs.h"
#include "outside.h"
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

Taken taken_before() {
  constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return taken(before->getDeviceStats(attached().index), all);
}

// Memory outside of the engine is that of `before`.
constexpr outside::Source kOutside{
    [] { return taken_before().held_bytes; },
    [] { return taken_before().idle_bytes; },
    [] {
      // What is captured may need any of it.
      if (!graphs::captures()) {
        before->emptyCache({0, 0});
      }
    }};

// Pools of `before` that take allocations now: those of graphs that are captured, and others that
// scripts make.
class OpenPools {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void open(c10::MempoolId_t pool, Filter filter) {
    outside::open_pool();
    graphs::pool_opened();
    const std::lock_guard<std::mutex> guard(lock_);
    open_.emplace_back(pool, std::move(filter));
    count_.store(open_.size());
  }

  void close(c10::MempoolId_t pool) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto is_it = [&](const auto& one) { return one.first == pool; };
    const auto found = std::find_if(open_.begin(), open_.end(), is_it);
    if (found != open_.end()) {
      open_.erase(found);
      count_.store(open_.size());
      smartswap_capture_ended();
      graphs::pool_closed();
      outside::close_pool();
    }
  }

  // Whether one of them takes what this thread allocates for the stream.
  bool take(cudaStream_t stream) {
    if (C10_LIKELY(count_.load(std::memory_order_relaxed) == 0) || outside::is_not()) {
      return false;
    }
    const std::lock_guard<std::mutex> guard(lock_);
    return std::any_of(
        open_.begin(), open_.end(), [&](const auto& one) { return one.second(stream); });
  }

 private:
  std::mutex lock_;
  std::vector<std::pair<c10::MempoolId_t, Filter>> open_;
  std::atomic<size_t> count_{0};
};

// Makes what a pool gave freed as all else is: by one function, which graphs of torch.compile
// look for.
void free_as_ours(c10::DataPtr& data) {
  data.compare_exchange_deleter(before->raw_deleter(), &delete_memory);
}

// Free and total bytes of the device.
std::pair<size_t, size_t> memory_info() {
  const auto [free_bytes, total_bytes] = caching::allocator.load()->getMemoryInfo(attached().index);
  return {free_bytes, total_bytes};
}

bool may_be_workspace(size_t size_bytes) {
  static thread_local WorkspaceSizes sizes;
  return sizes.have(size_bytes);
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
    const auto take_outside = [&] { return before->allocate(size_bytes); };
    if (size_bytes > 0 && outside::here()) {
      return outside::allocate(kOutside, size_bytes, take_outside);
    }
    const auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
    if (size_bytes > 0 && pools_.take(stream)) {
      auto data = outside::allocate(kOutside, size_bytes, take_outside);
      free_as_ours(data);
      return data;
    }
    void* memory = nullptr;
    if (size_bytes > 0) {
      memory = take(size_bytes, stream);
      if (!observer::knows_all() && may_be_workspace(size_bytes)) {
        check(smartswap_hold(memory, current_stream(), "a library's workspace"));
      }
    }
    return {memory, memory, &delete_memory, place};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &delete_memory;
  }

  void copy_data(void* target, const void* source, size_t size_bytes) const override {
    auto failed = cudaSuccess;
    copy_as_op(target, source, [&] {
      const auto stream = c10::cuda::getCurrentCUDAStream(attached().index).stream();
      failed = cudaMemcpyAsync(target, source, size_bytes, cudaMemcpyDeviceToDevice, stream);
    });
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
    if (size_bytes == 0) {
      return nullptr;
    }
    if (outside::here() || pools_.take(stream)) {
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

  double getMemoryFraction(c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      return before->getMemoryFraction(device);
    }
    const auto total = static_cast<double>(getMemoryInfo(device).second);
    return static_cast<double>(engine_stats().limit_bytes) / total;
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      before->setMemoryFraction(fraction, device);
      return;
    }
    warn_of_fraction(fraction);
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
    trim();
    before->emptyCache(pool);
    outside::trim();
  }

  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    if (!is_ours(device)) {
      before->cacheInfo(device, largest);
      return;
    }
    const auto now = engine_stats();
    *largest = now.limit_bytes - now.active.current;
  }

  void* getBaseAllocation(void* memory, size_t* size_bytes) override {
    void* start = base_of(memory, size_bytes);
    return start != nullptr ? start : before->getBaseAllocation(memory, size_bytes);
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (data.get() == nullptr) {
      return;
    }
    if (data.get_deleter() != &delete_memory) {
      before->recordStream(data, stream);
      return;
    }
    if (!is_ours(data.get())) {
      c10::DataPtr theirs(data.get(), data.get(), before->raw_deleter(), data.device());
      before->recordStream(theirs, stream);
      theirs.release_context();
      return;
    }
    if (graphs::captures()) {
      // The stream uses it when the graph runs.
      return;
    }
    check(smartswap_use_on(data.get(), handle_of(stream.stream())));
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    if (!is_ours(device)) {
      return before->getDeviceStats(device);
    }
    return device_stats<c10::CachingDeviceAllocator::DeviceStats>(
        static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE),
        static_cast<size_t>(c10::CachingAllocator::StatType::LARGE_POOL), out_of_memory_.count());
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

  caching::SnapshotInfo snapshot(c10::MempoolId_t pool, bool with_traces) override {
    auto info = before->snapshot(pool, with_traces);
    if (pool == c10::MempoolId_t(0, 0)) {
      list_segments(info.segments);
    }
    return info;
  }

  // Pools are outside: their memory stays, as those who run a graph expect it.
  void beginAllocateToPool(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      std::function<bool(cudaStream_t)> filter) override {
    if (is_ours(device)) {
      // A stream may be about to capture.
      observer::watch_again();
      check(smartswap_capture_begins());
    }
    before->beginAllocateToPool(device, pool, filter);
    if (is_ours(device)) {
      pools_.open(pool, std::move(filter));
    }
  }

  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    if (device == attached().index) {
      pools_.close(pool);
    }
    before->endAllocateToPool(device, pool);
  }

  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    before->releasePool(device, pool);
  }

  void createOrIncrefPool(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      std::shared_ptr<CUDAAllocator> allocator) override {
    before->createOrIncrefPool(device, pool, std::move(allocator));
  }

  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return before->getPoolUseCount(device, pool);
  }

  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override {
    before->setUseOnOOM(device, pool, use);
  }

  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    before->setNoSplit(device, pool);
  }

  bool checkPoolLiveAllocations(
      c10::DeviceIndex device, c10::MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    return before->checkPoolLiveAllocations(device, pool, expected);
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
      bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, size_t max_entries,
      c10::CachingDeviceAllocator::RecordContext when, bool clear,
      const std::vector<std::string>& skipped) override {
    if (enabled) {
      warn_of_history();
    }
    before->recordHistory(enabled, context, max_entries, when, clear, skipped);
  }

  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& annotation) override {
    before->recordAnnotation(annotation);
  }

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    out_of_memory_.attach(std::move(observer));
  }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
  void attachOomRejectionObserver(caching::OomRejectionObserver observer) override {
    // It is told of the other devices' allocations alone: the engine rejects none beforehand.
    before->attachOomRejectionObserver(std::move(observer));
  }
#endif

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
      c10::DeviceIndex device, c10::MempoolId_t pool) override {
    return before->getCheckpointState(device, pool);
  }

  caching::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    auto delta = before->setCheckpointPoolState(device, std::move(state));
    std::for_each(delta.dataptrs_allocd.begin(), delta.dataptrs_allocd.end(), &free_as_ours);
    return delta;
  }

  std::string name() override {
    return "smartswap";
  }

 private:
  void* take(size_t size_bytes, cudaStream_t stream) {
    observer::before_allocation(size_bytes);
    void* memory = smartswap_allocate(size_bytes, handle_of(stream));
    if (memory == nullptr) {
      out_of_memory_.fail(size_bytes, &memory_info);
    }
    replay::note_allocation(memory, size_bytes);
    return memory;
  }

  OutOfMemory<caching::OutOfMemoryObserver> out_of_memory_;
  OpenPools pools_;
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
