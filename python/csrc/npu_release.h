// What differs between releases of torch_npu. The headers of the one at hand are asked: what came
// with a release may have come to earlier ones as well, with their post releases.
#pragma once

#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>

#include <type_traits>
#include <utility>

#include "device_allocator.h"

namespace smartswap::npu {

namespace caching = c10_npu::NPUCachingAllocator;

// The one argument that a member function takes.
template <class Function>
struct Argument;
template <class Result, class Class, class Taken>
struct Argument<Result (Class::*)(Taken)> {
  using type = Taken;
};
template <auto function>
using ArgumentOf = typename Argument<decltype(function)>::type;

// The number of a device whose statistics are asked for.
using StatsIndex = ArgumentOf<&caching::NPUAllocator::getDeviceStats>;

// The allocator from before: it serves other devices, and what was allocated by it.
inline caching::NPUAllocator* before = nullptr;

// Each of these adds one function of the `Interface` to `Base`, if it is there.

template <class Base, class Interface, class = void>
struct WithPoolEmptying : Base {};
template <class Base, class Interface>
struct WithPoolEmptying<
    Base, Interface,
    std::void_t<decltype(std::declval<Interface&>().emptyCache(c10_npu::MempoolId_t{}))>> : Base {
  using Base::emptyCache;
  void emptyCache(c10_npu::MempoolId_t pool) override {
    trim();
    static_cast<Interface*>(before)->emptyCache(pool);
  }
};

template <class Base, class Interface, class = void>
struct WithTraceTracker : Base {};
template <class Base, class Interface>
struct WithTraceTracker<
    Base, Interface, std::void_t<decltype(&Interface::attachAllocatorTraceTracker)>> : Base {
  // It is told of the other devices' allocations alone.
  void attachAllocatorTraceTracker(
      ArgumentOf<&Interface::attachAllocatorTraceTracker> tracker) override {
    static_cast<Interface*>(before)->attachAllocatorTraceTracker(std::move(tracker));
  }
};

// The interface, of which an allocator has to implement the rest.
using Interface = WithTraceTracker<
    WithPoolEmptying<caching::NPUAllocator, caching::NPUAllocator>, caching::NPUAllocator>;

}  // namespace smartswap::npu
