// What the observer knows about operators.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string>
#include <vector>

#include "replay.h"
#include "smartswap.h"

namespace smartswap {

// What there is to know about an operator before its first run.
struct Operator {
  // As the dispatcher has it: each overload has a place of its own.
  const char* key = nullptr;
  std::string name;
  // Its outputs are its inputs in another shape: it does nothing to memory.
  bool is_view = false;
  // It calls other operators and does nothing besides, where its inputs are plain tensors.
  bool only_calls = false;
  // Autocast has it called again with other inputs.
  bool autocasts = false;
  // PyTorch's own.
  bool is_built_in = false;
  // It reads or makes what tensors are, not what is in them: views, and empty_like.
  bool is_metadata = false;
  // Its work outlives it, on streams of its own.
  bool is_collective = false;
  // All that it returns is among its inputs, so it need not allocate.
  bool returns_inputs = false;
  // If it may be called again to make its outputs again.
  std::optional<replay::Candidate> again;
  replay::Unsaid unsaid;
  bool draws = false;
  // A call of it has called others that take longer to watch than looking away does.
  mutable bool is_long_inside = false;
  // By argument: whether it is written, and whether with all that it held forgotten.
  std::vector<bool> writes;
  std::vector<bool> overwrites;

  // How a call uses the tensors of one of its inputs.
  smartswap_access use_of(c10::ArrayRef<const c10::IValue> inputs, size_t index) const;
};

// What is called. Null for what is no operator: ranges of profilers, Python functions.
const Operator* find_operator(const at::RecordFunction& fn);

// Whether a call does all its work in operators that it calls. Those are the engine's ops then.
bool calls_others(const at::RecordFunction& fn, const Operator& op);

// Looks for kernels that others have registered for PyTorch's own operators. They may use tensors
// that no call names. Until this was called, there may be some.
void look_for_foreign_kernels();

// Others register one from now on.
void note_foreign_kernel();

// Whether a call uses no memory but its arguments' and what it allocates, so that the operators it
// calls have nothing to add.
bool tells_all(const at::RecordFunction& fn, const Operator& op);

// Whether all that a call names, tensors and the device for new ones, is of other devices than the
// engine's, as where a batch is put together on the host. It is no part of the device's step: how
// many come between two ops may be a matter of time.
bool is_elsewhere(const at::RecordFunction& fn, const Operator& op);

}  // namespace smartswap
