// Running an operator again to bring its output back: what is kept of a call, and how it is called.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <cstdint>

namespace smartswap::replay {

// Whether a functional operator of this name writes the same bits from the same inputs each time,
// and takes little time.
bool is_cheap_and_sure(const char* name);

// Keeps what it takes to run the operator that starts now again, if it can be run again.
void capture(const at::RecordFunction& fn, const c10::OperatorHandle& op);

// The captured operator ends: lets the engine run it again, if its outputs are all that it
// allocated.
void offer(const at::RecordFunction& fn);

// Tells of an allocation of the thread's running operator.
void note_allocation(void* memory);

// While an operator is run again: the memory of its next output of this size, or nothing.
void* take_target(uint64_t size_bytes);

// The deleter of such memory: the tensor that it was made for owns it.
void keep(void* memory);

}  // namespace smartswap::replay
