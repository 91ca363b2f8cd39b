//! Address ranges, straight from the operating system.
//!
//! The functions here are safe because they change only addresses that their own value reserved,
//! and nobody holds Rust references into those but effects that are running. That no effect is
//! left when an address loses its memory is promised by the callers of `Driver::unmap`.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// Addresses that nothing else in the process uses. They fault until memory is shown there.
#[derive(Debug)]
pub(super) struct Reservation {
    start: usize,
    size_bytes: usize,
}

impl Reservation {
    /// Reserves `size_bytes` addresses at a multiple of `align_bytes`, a power of two.
    pub(super) fn new(size_bytes: u64, align_bytes: u64) -> Result<Reservation, Errno> {
        let align = usize::try_from(align_bytes).map_err(|_| Errno::NOMEM)?;
        let size = usize::try_from(size_bytes).map_err(|_| Errno::NOMEM)?;
        let padded = size.checked_add(align).ok_or(Errno::NOMEM)?;
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no fixed address is asked for, so no existing memory changes.
        let found = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), padded, none, flags) }?;
        let first = found.expose_provenance();
        let start = first.next_multiple_of(align);
        let reservation = Reservation { start, size_bytes: size };
        release(first, start - first);
        release(start + size, first + padded - (start + size));
        Ok(reservation)
    }

    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }

    /// Puts the file's bytes from `offset_bytes` on at `address`, readable and writable.
    /// With `touch` the page tables are filled now, which is far cheaper than by faults later.
    pub(super) fn show(
        &self,
        address: u64,
        size_bytes: u64,
        file: BorrowedFd<'_>,
        offset_bytes: u64,
        touch: bool,
    ) -> Result<(), Errno> {
        let (start, size) = self.part(address, size_bytes);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: `part` checked that only our own addresses change; see the top of this file.
        let shown = unsafe { mm::mmap(start, size, access, flags, file, offset_bytes) }?;
        shown.expose_provenance();
        if touch {
            // SAFETY: the pages were mapped just now; populating changes none of their bytes.
            let populated = unsafe { mm::madvise(start, size, Advice::LinuxPopulateWrite) };
            // Kernels before 5.14 refuse. The pages then come by faults.
            populated.ok();
        }
        Ok(())
    }

    /// Makes the addresses fault again.
    pub(super) fn hide(&self, address: u64, size_bytes: u64) -> Result<(), Errno> {
        let (start, size) = self.part(address, size_bytes);
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: `part` checked that only our own addresses change; see the top of this file.
        unsafe { mm::mmap_anonymous(start, size, none, flags) }.map(drop)
    }

    fn part(&self, address: u64, size_bytes: u64) -> (*mut c_void, usize) {
        let start = usize::try_from(address).expect("checked against the reservation");
        let size = usize::try_from(size_bytes).expect("checked against the reservation");
        let inside = start >= self.start
            && size <= self.size_bytes
            && start - self.start <= self.size_bytes - size;
        assert!(inside, "{address:#x} + {size_bytes} is not in the reservation");
        (std::ptr::with_exposed_provenance_mut(start), size)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        release(self.start, self.size_bytes);
    }
}

/// Gives back addresses that a value of this file owns and no longer uses.
fn release(start: usize, size_bytes: usize) {
    if size_bytes == 0 {
        return;
    }
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: called only with a value's own addresses, at its end or cut off at its birth.
    let released = unsafe { mm::munmap(start, size_bytes) };
    released.expect("unmapping whole pages of our own fails only for lack of kernel memory");
}
