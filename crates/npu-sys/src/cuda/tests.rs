//! What can be tested of the driver without a GPU.

mod abi;
mod driver;
mod fake;
mod load;

pub(super) use abi::number;
mod turns;
