// Running an operator again to bring an output back: which operators can, what is kept of a call,
// and when the engine is told of it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace smartswap::replay {

// An operator that makes its outputs from its inputs alone.
struct Candidate {
  c10::OperatorHandle op;
  // It takes numbers from a generator.
  bool draws = false;
  // It makes what only depends on the shapes of its inputs.
  bool reads_shapes = false;
  // The values of its inputs say how large its outputs are, if they are masks.
  bool masks_size_outputs = false;
  // It adds in any order, unless deterministic operators are asked for.
  bool adds_in_any_order = false;
  // It makes each of its numbers from one of each input, or only moves them. What is true of it at
  // one size is so at all.
  bool is_pointwise = false;
  // By argument: whether it writes its result there, whatever was there before.
  std::vector<bool> results;
};

// `changes_unsaid`: it changes some of its inputs, which its schema does not say.
std::optional<Candidate> candidate(
    const c10::OperatorHandle& op, const std::string& name, bool reads_shapes);

// The arguments that an operator changes although its schema does not say so, such as running
// statistics of a batch norm or the state from which a recurrent layer draws its dropout, and the
// argument that says whether it does so in this call.
struct Unsaid {
  std::vector<size_t> changed;
  std::optional<size_t> condition;

  bool changes(c10::ArrayRef<const c10::IValue> inputs, size_t index) const;
};
Unsaid unsaid(const c10::FunctionSchema& schema);

// The calling thread is about to take numbers from a generator.
void note_draw();

// The operator that starts now: keeps what it takes to run it again, if the engine has a use for
// that and it can be run again.
void capture(const at::RecordFunction& fn, const Candidate& op, const Unsaid& unsaid);

// It ends: lets the engine run it again, if calls of its kind are known to give the same bits.
void offer(const at::RecordFunction& fn);

// It ends, and went on without memory that it asked for: with more, it may take another way, which
// rounds differently. So no call of its kind is made again.
void distrust();

// Its end has been told: finds out about its kind, if nothing is known.
void prove(const at::RecordFunction& fn);

// Tells of an allocation of the thread's running operator.
void note_allocation(void* memory, uint64_t size_bytes);

// While an operator is run again: the memory of the output that is brought back, if this is its
// allocation, or nothing.
void* take_target(uint64_t size_bytes);

// The deleter of such memory: the tensor that it was made for owns it.
void keep(void* memory);

// From now on each output that can be made again is dropped at once, or not any more. A test sees
// so that all of them come back as they were.
void drop_at_once(bool on);

// What came of it so far.
struct Report {
  // Calls kept now, and their bytes of host memory.
  uint64_t kept_calls = 0;
  uint64_t kept_bytes = 0;
  // Calls that the engine may run again, and runs.
  uint64_t offered = 0;
  uint64_t runs = 0;
  // Time of the host that keeping calls and letting go of them took, kept or not.
  double keeping_us = 0;
  // Kinds of calls that gave the same bits again.
  uint64_t sure_kinds = 0;
  // Operators of which a call gave other bits when it was run again: those are not.
  std::vector<std::string> unsure;
  // Why calls were not kept, and how often.
  std::vector<std::pair<std::string, uint64_t>> refused;
};
Report report();

}  // namespace smartswap::replay
