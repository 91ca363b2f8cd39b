// Tells the engine which memory each dispatcher operator uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "smartswap.h"

namespace smartswap::observer {

// Which operators are part of the training step.
enum class Aside : int {
  // Those before the step's first operator that run with gradients off are not: evaluations. Nor
  // are those of threads that neither train nor run backward passes.
  automatic = 0,
  // None of this thread is.
  all = 1,
  // All are.
  none = 2,
};

void install();
void remove();

// For this thread.
void set_aside(Aside mode);

// The calling thread's operators belong to training steps.
void train_here();

// A new step begins: nothing of it has run yet. The calling thread trains.
void step_ended();

// Begins an op on this thread as if a dispatcher operator of this name did.
void begin(const char* name);
// Tells that the running op uses a tensor's memory.
void touch(const at::Tensor& tensor, smartswap_access access);
void end();
// Ends it after an error, of which the caller tells.
void abandon();
// Whether the op that was begun last is captured: it runs with its graph.
bool is_in_captured_op();

// Stops watching if the engine needs nothing but allocations: the model fits with room to spare.
// Call it after a step.
void sleep_if_calm();

// Watches again. No operator runs now.
void watch_again();

// Whether every operator that runs now has been told of.
bool knows_all();

// Call it before each allocation. Watches again if the memory might become short. Throws for
// an operator that must not run, and what the end of the one before met.
void before_allocation(uint64_t size_bytes);

}  // namespace smartswap::observer
