//! Device addresses, straight from the operating system.
//!
//! A process may have only so many mappings, 65,530 by default, and the system joins neighbours
//! that are alike: to take one of them away again splits them, which takes one mapping more. So
//! ranges are pieces of large ranges, and giving one back is a matter of tables alone; and what is
//! shown never joins (see `physical.rs`), so hiding it splits nothing. Giving back always works.
//!
//! All here changes only addresses that its own value reserved. Nobody holds Rust references into
//! those but effects that are running, and that none is left when an address loses its memory is
//! what the callers of `hide` promise.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

/// Spans are at least this long.
const SPAN_BYTES: usize = 1 << 30;

/// All addresses of one device, and those that are free.
#[derive(Debug)]
pub(super) struct AddressSpace {
    align: usize,
    ranges: Vec<AddressRange>,
    /// Length by start; neighbours are joined.
    free: BTreeMap<usize, usize>,
}

/// Addresses that nothing else in the process uses.
#[derive(Debug)]
struct AddressRange {
    start: usize,
    size_bytes: usize,
}

/// Addresses of an [`AddressSpace`], which must be there for longer. They fault until memory is
/// shown there.
#[derive(Debug)]
pub(super) struct Reservation {
    start: usize,
    size_bytes: usize,
}

impl AddressSpace {
    /// Reservations start at multiples of `align_bytes`, a power of two.
    pub(super) fn new(align_bytes: u64) -> AddressSpace {
        let align = usize::try_from(align_bytes).expect("a power of two that fits in addresses");
        AddressSpace { align, ranges: Vec::new(), free: BTreeMap::new() }
    }

    /// Reserves `size_bytes` addresses, a positive multiple of the alignment.
    pub(super) fn reserve(&mut self, size_bytes: u64) -> Result<Reservation, Errno> {
        let size_bytes = usize::try_from(size_bytes).map_err(|_| Errno::NOMEM)?;
        if let Some(start) = self.take(size_bytes) {
            return Ok(Reservation { start, size_bytes });
        }
        let align = self.align;
        let map = |size: usize| AddressRange::new(size.checked_add(align).ok_or(Errno::NOMEM)?);
        // A process that may not have so many addresses has perhaps just enough.
        let span = map(size_bytes.max(SPAN_BYTES)).or_else(|_| map(size_bytes))?;
        let start = span.start.next_multiple_of(align);
        self.insert(start, (span.start + span.size_bytes - start) / align * align);
        self.ranges.push(span);
        let start = self.take(size_bytes).expect("the span holds it");
        Ok(Reservation { start, size_bytes })
    }

    /// Takes addresses back, where nothing is shown.
    pub(super) fn give_back(&mut self, reservation: Reservation) {
        self.insert(reservation.start, reservation.size_bytes);
    }

    /// The lowest free addresses that are enough.
    fn take(&mut self, size_bytes: usize) -> Option<usize> {
        let (&start, &free_bytes) = self.free.iter().find(|(_, free)| **free >= size_bytes)?;
        self.free.remove(&start);
        if free_bytes > size_bytes {
            self.free.insert(start + size_bytes, free_bytes - size_bytes);
        }
        Some(start)
    }

    fn insert(&mut self, mut start: usize, mut size_bytes: usize) {
        if let Some(behind_bytes) = self.free.remove(&(start + size_bytes)) {
            size_bytes += behind_bytes;
        }
        if let Some((&before, &before_bytes)) = self.free.range(..start).next_back()
            && before + before_bytes == start
        {
            start = before;
            size_bytes += before_bytes;
        }
        self.free.insert(start, size_bytes);
    }
}

impl AddressRange {
    fn new(size_bytes: usize) -> Result<AddressRange, Errno> {
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no fixed address is asked for, so no existing memory changes.
        let found = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), size_bytes, none, flags) }?;
        Ok(AddressRange { start: found.expose_provenance(), size_bytes })
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: only the span's own addresses change; see the top of this file.
        let released = unsafe { mm::munmap(start, self.size_bytes) };
        // Beside others of their kind, and with no mapping to spare, the addresses stay.
        released.ok();
    }
}

impl Reservation {
    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    /// Puts the file's bytes from `offset_bytes` on at `address`, readable and writable.
    /// With `touch` the page tables are filled now, which is far cheaper than by faults later.
    ///
    /// # Safety
    /// Nothing is shown there: it would lose its addresses.
    pub(super) unsafe fn show(
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
        // SAFETY: `part` checked that only our own addresses change; the caller promises that
        // they show nothing.
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

    /// Makes the addresses of one [`show`](Reservation::show) fault again.
    ///
    /// # Safety
    /// Nobody uses the addresses any more.
    pub(super) unsafe fn hide(&self, address: u64, size_bytes: u64) -> Result<(), Errno> {
        let (start, size) = self.part(address, size_bytes);
        let none = ProtFlags::empty();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: `part` checked that only our own addresses change; the caller promises that
        // nobody uses them.
        match unsafe { mm::mmap_anonymous(start, size, none, flags) } {
            // Beyond the limit on mappings the system maps nothing, not even in place of another.
            // But the one that is there can be closed.
            Err(Errno::NOMEM) => {
                // SAFETY: as above.
                unsafe { mm::mprotect(start, size, MprotectFlags::empty()) }
            }
            mapped => mapped.map(drop),
        }
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
