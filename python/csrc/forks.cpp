// Forked children: they get copies of the engine's CPU tensors, as they would of other memory.
#include "engine.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

namespace smartswap {

namespace {

std::atomic<bool> forked{false};

// Whole pages of memory that parent and child would share, and what is in them.
struct Pages {
  char* start;
  std::vector<char> bytes;
};

std::vector<Pages>& copies() {
  // Never destroyed: a fork may come while the process ends.
  static auto* value = new std::vector<Pages>();
  return *value;
}

void copy_pages(void*, void* start, uint64_t size_bytes) {
  static const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto begin = reinterpret_cast<uintptr_t>(start) / page_bytes * page_bytes;
  const auto last = reinterpret_cast<uintptr_t>(start) + size_bytes + page_bytes - 1;
  const auto end = last / page_bytes * page_bytes;
  if (!copies().empty()) {
    // Small allocations share pages.
    const auto& before = copies().back();
    const auto done = reinterpret_cast<uintptr_t>(before.start) + before.bytes.size();
    begin = begin < done && end >= done ? done : begin;
  }
  if (begin < end) {
    auto* first = reinterpret_cast<char*>(begin);
    copies().push_back({first, std::vector<char>(first, first + (end - begin))});
  }
}

void before_fork() {
  // Memory of accelerators is no child's business.
  if (!attached().active.load() || attached().type != c10::DeviceType::CPU || in_forked_child()) {
    return;
  }
  if (smartswap_visit(&copy_pages, nullptr) != SMARTSWAP_OK) {
    std::fprintf(
        stderr, "SmartSwap: a forked child cannot use the CPU tensors of its parent: %s\n",
        smartswap_last_error());
  }
}

void in_parent() {
  copies().clear();
}

void in_child() {
  forked.store(true, std::memory_order_relaxed);
  for (const auto& pages : copies()) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void* own = mmap(
        pages.start, pages.bytes.size(), PROT_READ | PROT_WRITE, flags, /*fd=*/-1, /*offset=*/0);
    if (own == MAP_FAILED) {
      std::perror("SmartSwap: a forked child has no memory for the CPU tensors of its parent");
      _exit(1);
    }
    std::memcpy(own, pages.bytes.data(), pages.bytes.size());
  }
  copies().clear();
}

}  // namespace

bool in_forked_child() {
  return forked.load(std::memory_order_relaxed);
}

void watch_forks() {
  static const int done = pthread_atfork(&before_fork, &in_parent, &in_child);
  (void)done;
}

}  // namespace smartswap
