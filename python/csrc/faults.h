// Faults of the software device: words for whoever uses memory that is away.
#pragma once

namespace smartswap {

// From here on a fault in the engine's memory is told before it ends the process.
void watch_faults();
// Leaves faults to whoever watched before.
void ignore_faults();

}  // namespace smartswap
