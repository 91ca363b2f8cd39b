//! Pinned memory stays with the process that pinned it.
//!
//! A fork copies page tables, and at once every page that a device has pinned, since the device
//! may write to it at any time: each child would take as long, and as much memory, as the whole
//! arena. So children do not get such memory; what they touch of it faults.

use std::ffi::c_void;

use rustix::io::Errno;
use rustix::mm::{self, Advice};

/// Keeps whole pages from children that are forked from now on, until they are unmapped or
/// [given](give_to_children).
pub(crate) fn keep_from_children(start: u64, size_bytes: u64) -> Result<(), Errno> {
    advise(start, size_bytes, Advice::LinuxDontFork)
}

/// Lets children have pages again, before somebody else gets them.
pub(crate) fn give_to_children(start: u64, size_bytes: u64) -> Result<(), Errno> {
    advise(start, size_bytes, Advice::LinuxDoFork)
}

fn advise(start: u64, size_bytes: u64, advice: Advice) -> Result<(), Errno> {
    let address: *mut c_void = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: neither advice changes anything in this process but what its children will get.
    unsafe { mm::madvise(address, size_bytes as usize, advice) }
}
