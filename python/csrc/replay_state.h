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
// Finds out about the kind of the thread's last call, if nothing is known. `first` are the tensors
// that it returned.
void prove(const std::string& name, const std::vector<View>& first);
// Offers the thread's last call, if calls of its kind are known to give the same bits.
void offer_captured();
// Why a call is not kept.
void refuse(const char* why);
// What keeps any call from being kept now, or null.
const char* hindrance();
// The stream on which operators of the calling thread run now.
c10::Stream stream_now();
// Adds settings to what tells kinds apart.
void add_settings(const Settings& settings, std::string& kind);
// Adds what is known of kinds.
void add_trust(Report& report);

}  // namespace smartswap::replay
