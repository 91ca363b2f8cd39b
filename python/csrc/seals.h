// Notices bytes that change while no op writes them.
//
// When an op has ended, each block that it wrote, or that was seen for the first time, is sealed:
// its bytes are summed. Before another op uses the block, they are summed again. Whatever moved it
// in between, the sums must be the same. The device does the sums and the comparisons, and the
// host looks at them when the step has ended.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>

#include <string>

#include "operators.h"
#include "smartswap.h"

namespace smartswap::seals {

// From now on, or not any more.
void watch(bool on);
bool watches();
// Uses that were compared since.
uint64_t n_compared();

// Whatever is in the block around the memory now is right.
void forget(const void* memory);
// The memory, a whole block, begins a new life.
void renew(const void* memory);
// From now on somebody may write the memory whom nobody sees, as long as it is allocated.
void lend(const void* memory);

// An op of the calling thread has begun. Does nothing if it is inside another.
void begin();
// The op may use the storage, which stays until it ends.
void use(const c10::Storage& storage, smartswap_access access, const std::string& by);
void use_inputs(const at::RecordFunction& fn, const Operator& op);
void use_outputs(const at::RecordFunction& fn, const Operator& op);
// The op is about to end: seals what it used. Does nothing if it is inside another.
void end(const std::string& by);

// Waits for the device, and throws if bytes have changed since the last time. Says whose.
void check();

}  // namespace smartswap::seals
