// What a thread is in the middle of: a call that it keeps, or one that it makes again.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "replay_call.h"

namespace smartswap::replay {

// A call that may be offered or proved at its end.
struct Captured {
  explicit Captured(Work work) : call(std::move(work)) {}

  Call call;
  std::string kind;
  bool is_recorded = false;
  // The operator, if what is true of it at one size is so at all.
  std::string at_any_size;
  // Numbers that other threads had drawn when it began.
  uint64_t draws_of_others = 0;
};

// What is known of a kind of calls.
enum class Trust { unknown, sure, unsure };
Trust trust_in(const Captured& captured);
// Whether another kind can be remembered.
bool can_learn();

struct Thread {
  std::optional<Captured> captured;
  // What the captured call has allocated: where, and how much.
  std::vector<std::pair<void*, uint64_t>> allocated;
  // A call of a kind of which nothing is known.
  std::optional<Captured> unproven;
  // The outputs of the call that was offered last, while tests drop all at once.
  std::vector<void*> to_drop;
  // While a call is made again: the output that is brought back, and how many allocations of its
  // size come before its own.
  const Output* target = nullptr;
  size_t turns_left = 0;
  // The memory of that output, from when it was handed out until it is given back.
  void* handed_out = nullptr;
};
Thread& thread();

// While it lasts, one allocation of the thread gets the memory of this output, if there is one.
class Target {
 public:
  explicit Target(const Output* output) {
    thread().target = output;
    thread().turns_left = output == nullptr ? 0 : output->turn;
  }
  ~Target() {
    thread().target = nullptr;
    thread().handed_out = nullptr;
  }
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
};

// Memory for a tensor like this, and a copy of its bytes, both aligned as it is and of `owner`.
char* scratch_for(const View& view, at::Tensor& owner);
char* copy_of(const View& view, at::Tensor& owner);
// Turns each bit of the storage at `memory` around.
void invert(const View& view, char* memory);

}  // namespace smartswap::replay
