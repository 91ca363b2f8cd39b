// Updates of an optimizer that wait until somebody uses memory of theirs.
//
// An optimizer steps when nothing else computes, so what it needs would come and go beside an idle
// device. An update that waits runs just before the first operator that uses one of its tensors:
// most often in the next forward pass, layer by layer, under whose compute the next layer's state
// comes back. Nobody can tell the difference but by the clock: whoever looks finds it done.
//
// What reads a weight after its update and writes only to memory of its own, as an average of the
// weights does, may wait behind it: it runs right after, before anybody else uses either.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine.h"

namespace smartswap::deferred {

namespace detail {
extern std::atomic<size_t> waiting;
}

// How many updates wait.
inline size_t count() {
  return detail::waiting.load(std::memory_order_relaxed);
}

// What happens to what waits for the same memory already: it runs at once, or first of the two.
enum class Earlier { kRuns, kWaits };

// Lets `run` wait until somebody uses the memory of one of `tensors`. Call it with the
// interpreter's lock, under which `run` is called, and let go of, as well.
void put_off(const std::vector<at::Tensor>& tensors, std::function<void()> run, Earlier earlier);

// The number of what waits for a tensor's memory: later ones have larger numbers. 0 if nothing
// does, and for whatever is used while an update runs.
uint64_t number_for(const at::Tensor& tensor);

// Runs what waits for the memory that an operator's inputs lie in. Says why if that failed.
std::optional<Failure> run_before(const at::RecordFunction& fn);
// The same for one tensor, or for the memory that begins at `start`. Throws what the update threw.
void run_before(const at::Tensor& tensor);
void run_before(const void* start);

// Runs all, in the order in which they were put off. Throws what the first that fails threw.
void run_all();

}  // namespace smartswap::deferred
