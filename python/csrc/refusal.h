// Keeps operators from running whose inputs could not be brought back.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

namespace smartswap {

// One operator that must not run, from its begin to its end.
//
// Callbacks of the dispatcher cannot throw, so the operator's kernel is called all the same. But
// whoever wants the memory of a tensor asks its storage, and while a refusal lives, the storages
// that it was given throw instead: c10::OutOfMemoryError if that is what happened. So do
// allocations of the operator.
class Refusal final : public at::ObserverContext {
 public:
  // `begun` says whether the engine knows of the operator. It may have no storages: then it needs
  // no memory, and can as well run.
  Refusal(bool begun, int code, std::string text, std::vector<c10::Storage> storages);
  ~Refusal() override;
  Refusal(const Refusal&) = delete;
  Refusal& operator=(const Refusal&) = delete;

  bool begun() const {
    return begun_;
  }
  // The operator has ended. If no exception ended it, it used memory behind our back, which was
  // not there: this ends the process, with the message.
  void ended() const;
  // Throws what happened.
  [[noreturn]] void raise() const;

  // The innermost one of this thread, or null.
  static const Refusal* current();

 private:
  bool begun_;
  int code_;
  std::string text_;
  std::vector<c10::Storage> storages_;
  int exceptions_before_;
  const Refusal* outer_;
};

// Lets what storages throw be of the type that fits. PyTorch itself knows one type there.
void choose_refusal_types();

}  // namespace smartswap
