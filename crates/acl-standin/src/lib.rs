//! A software Ascend device behind the real names and C signatures of `libascendcl.so`.
//!
//! It builds to a `libascendcl.so` that a driver opens as it would open the vendor's. Behind it
//! each device is a [`HostDriver`](npu_sys::devices::HostDriver). It is for tests: it is stricter
//! than the hardware, so that a driver that passes here asks nothing of a real device which its
//! documentation does not promise.
//!
//! # What it refuses beyond wrong pointers and sizes
//!
//! | misuse | code |
//! |---|---|
//! | a call on a thread without `aclrtSetDevice`, after the device's reset, or in a host function | 107002 |
//! | a stream or event of another context | 107003 |
//! | a copy whose kind does not say where the addresses are; bytes past the size asked for | 107000 |
//! | a copy or fill that touches the device's address of mapped host memory, without the VA flag | 107000 |
//! | a copy inside the device between addresses that are no multiples of 64 | 107008 |
//! | host to host copies on a stream | 207000 |
//! | mapping at an offset or not the whole handle; unmapping not by a mapping's start | 107000 |
//! | freeing a handle that is mapped, or addresses with mappings in them | 107000 |
//! | access set for the device that owns the memory | 107000 |
//! | waiting for or synchronizing an event that is not recorded, or waiting without the SYNC flag | 107000 |
//! | recording an old-style event again after waits, without a reset; resetting an Ex event | 107000 |
//! | resetting or destroying an old-style event before its waits are complete | 107000 |
//! | times of events without TIME_LINE or not complete | 107006 |
//! | destroying a stream, by force too, before the host has seen its work complete | 107000 |
//! | resetting a device or finalising while something is still held | 107000, 100000 |
//! | an operator that there is not, or of elements that it has not | 207000 |
//! | an operator's tensor that is not all on the device, or whose buffer is too small | 107000, 100000 |
//! | a collective of several ranks; one whose memory is not all on the device | 207000; 100000, 107000 |
//! | a description, buffer or set of attributes that was destroyed | 100000 |
//!
//! Registered and pinned host memory has an address on the device that differs from the host's,
//! a second mapping of the same bytes. Where the system cannot make one (memory of a file, of the
//! program's heap or stack) both addresses are the same.
//!
//! Host functions are the kernels: device memory is host memory at the same address. Functions of
//! the real library that are not here are those that nobody calls yet.
//!
//! # Operators
//!
//! `aclopCompileAndExecute` runs the operators of `ops.rs` in stream order, with real numbers:
//! those into which `torch_npu` takes the training step of a small GPT apart, and their like. What
//! is wrong with an operator's shapes is told by the next call that waits for its stream, as on
//! hardware. Under its name and those of the libraries beside it (`libhccl.so`, `libgraph.so` and
//! others, all links to this one) the real `torch_npu` loads this library and trains on it.
//!
//! # Collectives
//!
//! HCCL's functions know groups of one rank, so that `torch.distributed` runs as on hardware: on
//! streams of its own. [`standin_hold_collectives`] keeps what they are given waiting there.
//!
//! # Settings
//!
//! Environment variables, read by `aclInit`. A bad value makes it fail with 100000, and
//! `aclGetRecentErrMsg` says why.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `ACL_STANDIN_DEVICES` | number of devices | 1 |
//! | `ACL_STANDIN_MEMORY` | bytes of each; only what is used takes real memory | 64GiB |
//! | `ACL_STANDIN_GRANULARITY` | physical memory and addresses come in multiples of it; a power of two of at least 2MiB | 2MiB |
//! | `ACL_STANDIN_LINK` | bytes per second of copies between host and device, each way | no limit |
//! | `ACL_STANDIN_MODE` | `threads`; `by-time` or `seed:N`: lockstep on a virtual clock | threads |
//! | `ACL_STANDIN_RESET` | `frees`: a reset takes all that the device holds, as hardware does | refuses |
//! | `ACL_STANDIN_NAME` | the chip's name, such as `Ascend910B4` | SmartSwap stand-in |
//! | `ACL_STANDIN_VMM` | `off`: no reserving of addresses (207000) | on |
//! | `ACL_STANDIN_VA_FLAG` | `off`: no host memory with one address for both (207000) | on |
//! | `ACL_STANDIN_HOST_LIMIT` | most bytes of pinned and registered memory of each device | no limit |
//!
//! # For tests
//!
//! [`standin_ledger`] gives what a device holds, counted by its host driver;
//! [`standin_reset_peaks`] starts the peaks anew. Both need an initialised library and no current
//! device. Each loaded copy of the library has devices of its own.

mod abi;
mod addresses;
mod alias;
mod entry;
mod exports;
mod failure;
mod ops;
mod reset;
mod runtime;
mod settings;
mod shelf;
mod tables;

pub use abi::{
    AclrtMallocAttribute, AclrtMallocConfig, AclrtMemAccessDesc, AclrtMemLocation,
    AclrtPhysicalMemProp, AclrtPtrAttributes, Function, In, Opaque, Out,
};
pub use exports::attribute::*;
pub use exports::callback::*;
pub use exports::collective::*;
pub use exports::copy::*;
pub use exports::descriptor::*;
pub use exports::device::*;
pub use exports::event::*;
pub use exports::ledger::{StandinLedger, standin_ledger, standin_reset_peaks};
pub use exports::memory::*;
pub use exports::operator::*;
pub use exports::stream::*;
pub use exports::system::*;
pub use exports::tooling::*;
pub use exports::virtual_memory::*;
