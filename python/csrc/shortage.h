// Operators that ask for memory in vain and go on without: they take another way, which may round
// differently.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace smartswap::shortage {

// The calling thread's outermost operator begins.
void begin();

// Call it for each allocation that found no room, before it throws.
void note(uint64_t size_bytes);

// The operator has ended. Says whether it found another way: then it had asked for memory in vain,
// and nothing ended it that it was refused. That is counted, and told of.
bool end(const std::string& name);

// By operator: how many of its calls went on without memory that they asked for.
std::map<std::string, uint64_t> went_without();

// While it lasts, what finds no room is the business of a call that is made again, and not of the
// operator around it.
class OfAnother {
 public:
  OfAnother();
  ~OfAnother();
  OfAnother(const OfAnother&) = delete;
  OfAnother& operator=(const OfAnother&) = delete;

  // The call of this operator has come to its end: throws if it went on without memory. Libraries
  // may keep to the other way from then on, so that is counted and told of as well.
  void check(const std::string& name) const;

 private:
  uint64_t around_bytes_;
};

}  // namespace smartswap::shortage
