// Calls of operators of our own, beside whatever the thread is in the middle of.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "engine.h"
#include "outside.h"

namespace smartswap {

// While it lasts, calls go straight to the kernels of the device and are seen by nobody.
class Alone {
 public:
  explicit Alone(bool autocast = false)
      : keys_(
            c10::default_included_set,
            (c10::default_excluded_set | c10::autocast_dispatch_keyset |
             c10::autograd_dispatch_keyset_with_ADInplaceOrView) -
                casts(autocast)) {}

 private:
  // Autocast is on for a device where its key is not excluded.
  static c10::DispatchKeySet casts(bool autocast) {
    return autocast ? c10::DispatchKeySet(
                          at::autocast::get_autocast_dispatch_key_from_device_type(attached().type))
                    : c10::DispatchKeySet();
  }

  at::DisableRecordFunctionGuard unwatched_;
  outside::Not not_outside_;
  c10::impl::ForceDispatchKeyGuard keys_;
};

}  // namespace smartswap
