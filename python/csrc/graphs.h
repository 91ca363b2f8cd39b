// Graphs: work that a stream captures now and that runs later, any number of times.
//
// While a stream captures, nothing that it is given runs. So the engine has no ops there: what
// operators would use is noted, and on the device until the capture ends, as CUDA looks at the
// memory of copies and fills. A run is one op that uses all that was noted.
#pragma once

#include <ATen/record_function.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine.h"
#include "operators.h"

namespace smartswap::graphs {

namespace detail {
// Graphs that are captured now, and pools that are open.
extern std::atomic<int> underway;
bool captures_here();
}  // namespace detail

// Whether what the calling thread does now is captured, not done.
inline bool captures() {
  return C10_UNLIKELY(detail::underway.load(std::memory_order_relaxed) != 0) &&
      detail::captures_here();
}

// From here to the other, somebody may capture whom nobody has announced.
void pool_opened();
void pool_closed();

// Notes what something captured uses.
void note(const std::vector<smartswap_touched>& touched);
// The same for an operator. Says why it cannot be captured, if so.
std::optional<Failure> note(const at::RecordFunction& fn, const Operator& op);

// Somebody takes the address of memory while this thread captures: in an op that was announced,
// which said what it uses, or not.
void lend(void* memory, bool in_op);

// The step ends where this thread captures. Returns whether it does: then it ends at each run.
bool note_step_end();

class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Call it before the current stream begins to capture, and when it has ended or failed to begin.
  void begin();
  void end();
  // Calls `launch`, which gives the graph to the current stream, with all memory in place.
  void run(const std::function<void()>& launch);

  bool ends_step() const {
    return ends_step_;
  }

 private:
  friend void note(const std::vector<smartswap_touched>& touched);
  friend void lend(void* memory, bool in_op);
  friend bool note_step_end();

  void add(const std::vector<smartswap_touched>& touched);
  void include(const Graph& inner);

  uint64_t number_;
  // Where the memory begins that it uses, and whether it may write it.
  std::unordered_map<const void*, bool> used_;
  bool is_captured_ = false;
  bool ends_step_ = false;
};

}  // namespace smartswap::graphs
