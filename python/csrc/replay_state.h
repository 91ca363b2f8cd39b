// What capturing and proving share.
#pragma once

#include "replay_call.h"

namespace smartswap::replay {

// Where the memory of a tensor's storage begins.
char* memory_of(const at::Tensor& tensor);
// The shape and place of a plain tensor.
View view_of(const at::Tensor& tensor);
// Drops the outputs that were marked for it.
void drop_marked();
// Adds what is known of kinds.
void add_trust(Report& report);

}  // namespace smartswap::replay
