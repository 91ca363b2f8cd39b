// Sums of blocks' bytes: made when ops have written them, compared when others read them.
#include "seals.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "alone.h"
#include "engine.h"
#include "replay_call.h"
#include "tensors.h"

namespace smartswap::seals {

namespace {

struct Seal {
  at::Tensor sum;
  size_t size_bytes;
  // The op that left the bytes so.
  std::string writer;
};

// The outcome of a comparison, on the device: whether the sums differ.
struct Compared {
  at::Tensor differ;
  size_t size_bytes;
  std::string writer;
  std::string reader;
};

struct All {
  std::mutex lock;
  std::unordered_map<const char*, Seal> seals;
  std::unordered_set<const char*> lent;
  std::vector<Compared> compared;
  uint64_t n_compared = 0;
  // Sums that streams may still read: kept until the device is waited for.
  std::vector<at::Tensor> old;
};

// Never destroyed: the device may be gone by then, and with it its memory.
All& all() {
  static auto& value = *new All();
  return value;
}

std::atomic<bool> is_on{false};

// What the running op and those inside it use. It holds no memory.
struct Used {
  const char* memory;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};
thread_local std::vector<Used> used;

void note(const c10::Storage& storage) {
  used.push_back({start_of(storage), storage.getWeakStorageImpl()});
}

bool is_used(const char* memory) {
  return std::any_of(used.begin(), used.end(), [memory](const Used& one) {
    return one.memory == memory;
  });
}

// Whether it is all of a block that moves, which nobody writes unseen.
bool is_sealable(const c10::Storage& storage) {
  const char* memory = start_of(storage);
  if (storage.nbytes() < attached().least_bytes || smartswap_moves(memory) == 0 ||
      base_of(memory) != memory) {
    return false;
  }
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  return known.lent.count(memory) == 0;
}

at::Tensor sum_of(const c10::Storage& storage) {
  const Alone alone;
  replay::View words;
  words.size_bytes = storage.nbytes();
  words.sizes = {static_cast<int64_t>(storage.nbytes() / sizeof(int64_t))};
  words.strides = {1};
  words.type = at::kLong;
  words.device = storage.device();
  return at::sum(words.at(start_of(storage)), {0}, /*keepdim=*/true);
}

// Also says what it was.
std::optional<Seal> broken_open(const char* memory) {
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  const auto found = known.seals.find(memory);
  if (found == known.seals.end()) {
    return std::nullopt;
  }
  Seal seal = std::move(found->second);
  known.seals.erase(found);
  known.old.push_back(seal.sum);
  return seal;
}

std::optional<Seal> find(const char* memory) {
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  const auto found = known.seals.find(memory);
  return found == known.seals.end() ? std::nullopt : std::optional(found->second);
}

void compare(const c10::Storage& storage, const Seal& seal, const std::string& reader) {
  if (seal.size_bytes != storage.nbytes()) {
    return;
  }
  const auto now = sum_of(storage);
  const Alone alone;
  Compared compared{at::ne(now, seal.sum), seal.size_bytes, seal.writer, reader};
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  known.compared.push_back(std::move(compared));
  ++known.n_compared;
}

void seal(const c10::Storage& storage, const std::string& writer) {
  Seal made{sum_of(storage), storage.nbytes(), writer};
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  known.seals.insert_or_assign(start_of(storage), std::move(made));
}

// What it returns holds anything, so it need not be kept.
bool is_uninitialized(const Operator& op) {
  return op.name.compare(0, 11, "aten::empty") == 0;
}

}  // namespace

void watch(bool on) {
  is_on.store(on);
  if (on) {
    return;
  }
  std::unordered_map<const char*, Seal> seals;
  std::vector<Compared> compared;
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  seals.swap(known.seals);
  compared.swap(known.compared);
  known.lent.clear();
  known.n_compared = 0;
  known.old.clear();
}

bool watches() {
  return is_on.load(std::memory_order_relaxed);
}

uint64_t n_compared() {
  auto& known = all();
  const std::lock_guard<std::mutex> guard(known.lock);
  return known.n_compared;
}

void forget(const void* memory) {
  if (C10_UNLIKELY(watches())) {
    broken_open(static_cast<const char*>(base_of(memory)));
  }
}

void renew(const void* memory) {
  if (C10_UNLIKELY(watches())) {
    const auto* start = static_cast<const char*>(memory);
    broken_open(start);
    auto& known = all();
    const std::lock_guard<std::mutex> guard(known.lock);
    known.lent.erase(start);
  }
}

void lend(const void* memory) {
  if (C10_LIKELY(!watches())) {
    return;
  }
  if (const auto* start = static_cast<const char*>(base_of(memory)); start != nullptr) {
    broken_open(start);
    auto& known = all();
    const std::lock_guard<std::mutex> guard(known.lock);
    known.lent.insert(start);
  }
}

void begin() {
  if (smartswap_depth() == 1) {
    used.clear();
  }
}

void use(const c10::Storage& storage, smartswap_access access, const std::string& by) {
  if (!is_sealable(storage)) {
    return;
  }
  const char* memory = start_of(storage);
  const auto seal = access == SMARTSWAP_READ ? find(memory) : broken_open(memory);
  // Ops inside an op use what it does.
  const bool is_first = !is_used(memory);
  note(storage);
  if (seal && is_first && access != SMARTSWAP_WRITE && access != SMARTSWAP_OUTPUT) {
    compare(storage, *seal, by);
  }
}

void use_inputs(const at::RecordFunction& fn, const Operator& op) {
  if (op.is_metadata) {
    return;
  }
  const auto inputs = fn.inputs();
  for (size_t index = 0; index < inputs.size(); ++index) {
    // Of a collective the schema does not say what it writes.
    const auto access = op.is_collective ? SMARTSWAP_UNKNOWN : op.use_of(inputs, index);
    visit_storages(inputs[index], [&](const c10::Storage& storage) {
      use(storage, access, op.name);
    });
  }
  if (op.is_collective) {
    // It writes when its call has ended, and what it uses does not leave until then.
    used.clear();
  }
}

void use_outputs(const at::RecordFunction& fn, const Operator& op) {
  if (op.is_metadata || op.is_collective || is_uninitialized(op)) {
    return;
  }
  for (const c10::IValue& output : fn.outputs()) {
    visit_storages(output, note);
  }
}

void end(const std::string& by) {
  if (smartswap_depth() != 1) {
    return;
  }
  // Sums allocate, which may free others, whose memory is forgotten.
  for (auto& one : std::exchange(used, {})) {
    auto strong = one.storage.lock();
    if (!strong) {
      continue;
    }
    const c10::Storage storage(std::move(strong));
    if (is_sealable(storage) && !find(start_of(storage))) {
      seal(storage, by);
    }
  }
}

void check() {
  if (!watches()) {
    return;
  }
  std::vector<Compared> compared;
  std::vector<at::Tensor> old;
  {
    auto& known = all();
    const std::lock_guard<std::mutex> guard(known.lock);
    compared.swap(known.compared);
    old.swap(known.old);
  }
  const auto& device = attached();
  if (device.type != c10::DeviceType::CPU) {
    c10::impl::VirtualGuardImpl(device.type).synchronizeDevice(device.index);
  }
  const Alone alone;
  std::vector<at::Tensor> outcomes;
  for (const auto& one : compared) {
    outcomes.push_back(one.differ);
  }
  if (outcomes.empty()) {
    return;
  }
  const auto differ = at::cat(outcomes).to(at::kCPU);
  const bool* begin = differ.const_data_ptr<bool>();
  const bool* end = begin + outcomes.size();
  const bool* found = std::find(begin, end, true);
  if (found == end) {
    return;
  }
  const auto& first = compared[found - begin];
  TORCH_CHECK(
      false, "SmartSwap: of ", first.size_bytes, " bytes that ", first.writer, " left, ",
      first.reader, " found some changed, though nothing wrote them in between (so did ",
      std::count(begin, end, true), " of the ", compared.size(),
      " uses of this step). The numbers of this training are wrong from here on: please report "
      "it, with the script and the folder of --report");
}

}  // namespace smartswap::seals
