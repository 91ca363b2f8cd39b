//! What can be tested of the driver without a GPU.

mod abi;
mod driver;
mod fake;
mod load;
mod turns;

pub(super) use abi::number;
