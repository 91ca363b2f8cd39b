//! Host memory in large pages, touched by several threads near the device.
//!
//! A driver pins memory one page at a time, and much faster if the pages are there already: so
//! they are touched here first, in parallel. The kernel puts a page on the node of the processor
//! that first touches it, so the touching threads run near the device.
//!
//! Touching more than there is would not fail; it would end the process. So what a control group
//! forbids is refused beforehand. What exceeds the machine's available memory is tried in steps
//! of at most half of what is then left, because there are virtual machines that grow when they
//! are used; on others it ends in an error while there is still some memory left.

use std::ffi::c_void;
use std::process;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use crate::system::HostMemory;
use crate::types::{Bytes, HostPtr};

pub(crate) mod fork;
mod step;
mod touch;

pub use self::touch::Touching;

/// Smaller memory than this is left to the system: no large pages, no look at what is free.
const LARGE_BYTES: u64 = 2 << 20;

/// What kind of pages the system gives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PageKind {
    /// Huge pages that the administrator reserved.
    Reserved,
    /// Huge pages were asked for, and are given as far as there are any.
    Transparent,
    /// Pages of the usual size.
    Small,
}

/// Why there are no pages.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagesError {
    /// No memory has this size.
    #[error("{size_bytes} bytes is not a size that can be allocated")]
    BadSize {
        /// What was asked for.
        size_bytes: u64,
    },
    /// The control group of this process has not that much left.
    #[error(
        "{} would exceed the memory limit of {path}, which has room for {}",
        Bytes(*size_bytes), Bytes(*room_bytes)
    )]
    GroupFull {
        /// What was asked for.
        size_bytes: u64,
        /// The group's folder.
        path: String,
        /// What is left to it.
        room_bytes: u64,
    },
    /// The machine has not that much left.
    #[error(
        "{} of {} could be had, then only {} were left on the machine",
        Bytes(*touched_bytes), Bytes(*size_bytes), Bytes(*left_bytes)
    )]
    MachineFull {
        /// What was asked for.
        size_bytes: u64,
        /// What there was.
        touched_bytes: u64,
        /// What is left beside it.
        left_bytes: u64,
    },
    /// The system refused.
    #[error("{call} of {} failed: {text}", Bytes(*size_bytes))]
    System {
        /// The system call.
        call: &'static str,
        /// What was asked for.
        size_bytes: u64,
        /// The system's own text.
        text: String,
    },
}

/// Host memory of our own: private, page aligned, all zeros at first, with every page there.
/// It goes back to the system when this is dropped. Forked children do not get it.
#[derive(Debug)]
pub struct HostPages {
    start: usize,
    size_bytes: usize,
    kind: PageKind,
    /// The process that has them.
    owner: u32,
}

impl HostPages {
    /// Takes `size_bytes`, rounded up to whole pages, and touches all of it.
    ///
    /// From 2 MiB on it begins at a multiple of 2 MiB and is made of huge pages where the system
    /// gives them. Reserved ones are used if enough are free and `size_bytes` is a multiple of
    /// their size, so that none is paid for and not used.
    ///
    /// # Errors
    /// If there is not that much memory; all is as it was then.
    pub fn new(size_bytes: u64, touching: Touching) -> Result<HostPages, PagesError> {
        let bad = PagesError::BadSize { size_bytes };
        let Some(size) = size_bytes
            .checked_next_multiple_of(page_bytes())
            .filter(|&size| 0 < size && size < i64::MAX.unsigned_abs())
            .and_then(|size| usize::try_from(size).ok())
        else {
            return Err(bad);
        };
        if size_bytes < LARGE_BYTES {
            let pages = HostPages::map(size, PageKind::Small)
                .map_err(|errno| system("mmap", size, errno))?;
            return touch::all(&pages, touching).map(|()| pages);
        }
        let memory = HostMemory::read();
        if let Some(group) = &memory.group
            && group.room_bytes() < size as u64
        {
            let (path, room_bytes) = (group.path.clone(), group.room_bytes());
            return Err(PagesError::GroupFull { size_bytes, path, room_bytes });
        }
        if let Some(pages) = HostPages::reserved(size, &memory) {
            // Those pages may still be refused here, by limits of their own.
            if touch::all(&pages, touching).is_ok() {
                return Ok(pages);
            }
        }
        let pages = HostPages::map_aligned(size)?;
        step::touch(&pages, touching, &memory)?;
        Ok(pages)
    }

    /// The first byte.
    pub fn start(&self) -> HostPtr {
        HostPtr(self.start as u64)
    }

    /// The length, in whole pages.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes as u64
    }

    /// What was got.
    pub fn kind(&self) -> PageKind {
        self.kind
    }

    /// A mapping of reserved huge pages, if enough of them are free.
    fn reserved(size: usize, memory: &HostMemory) -> Option<HostPages> {
        let page_bytes = memory.huge.page_bytes?;
        let fits = (size as u64).is_multiple_of(page_bytes)
            && size as u64 <= memory.huge.reserved_free_bytes;
        // A touch of a page that the system cannot give ends the process; populating does not.
        if !fits || !touch::can_populate() {
            return None;
        }
        HostPages::map(size, PageKind::Reserved).ok()
    }

    /// Memory whose pages come by use. `size_bytes` is a positive number of whole pages.
    pub(crate) fn untouched(size_bytes: u64) -> Result<HostPages, Errno> {
        let size = usize::try_from(size_bytes).map_err(|_| Errno::NOMEM)?;
        let mut pages = HostPages::map(size, PageKind::Small)?;
        pages.ask_for_huge();
        Ok(pages)
    }

    fn map(size: usize, kind: PageKind) -> Result<HostPages, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = match kind {
            PageKind::Reserved => MapFlags::PRIVATE | MapFlags::HUGETLB,
            PageKind::Transparent | PageKind::Small => MapFlags::PRIVATE,
        };
        // SAFETY: no fixed address is asked for, so no existing memory changes.
        let found = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), size, access, flags) }?;
        let start = found.expose_provenance();
        let pages = HostPages { start, size_bytes: size, kind, owner: process::id() };
        fork::keep_from_children(start as u64, size as u64)?;
        Ok(pages)
    }

    /// A mapping that begins at a multiple of 2 MiB, for transparent huge pages.
    fn map_aligned(size: usize) -> Result<HostPages, PagesError> {
        let align = LARGE_BYTES as usize;
        let padded =
            size.checked_add(align).ok_or(PagesError::BadSize { size_bytes: size as u64 })?;
        let mut pages =
            HostPages::map(padded, PageKind::Small).map_err(|errno| system("mmap", size, errno))?;
        let (first, end) = (pages.start, pages.start + padded);
        pages.start = first.next_multiple_of(align);
        pages.size_bytes = size;
        release(first, pages.start - first);
        release(pages.start + size, end - (pages.start + size));
        pages.ask_for_huge();
        Ok(pages)
    }

    /// Asks for huge pages. Kernels without them refuse.
    fn ask_for_huge(&mut self) {
        let (start, size) = (self.address(0), self.size_bytes);
        // SAFETY: the pages are ours; the advice changes none of their bytes.
        if unsafe { mm::madvise(start, size, Advice::LinuxHugepage) }.is_ok() {
            self.kind = PageKind::Transparent;
        }
    }

    fn address(&self, offset: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.start + offset)
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        // In a forked child something else may be at these addresses.
        if self.owner == process::id() {
            release(self.start, self.size_bytes);
        }
    }
}

/// The size of the system's usual pages.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A size in whole pages, for memory that is to be pinned.
pub(crate) fn rounded_up(size_bytes: u64, page_bytes: u64) -> Result<u64, String> {
    let whole_bytes = size_bytes.checked_next_multiple_of(page_bytes);
    // A page more may be needed to begin at a page.
    let usable = |&bytes: &u64| bytes > 0 && bytes < u64::MAX - page_bytes;
    whole_bytes.filter(usable).ok_or_else(|| format!("{size_bytes} bytes cannot be pinned"))
}

/// Checks that memory is whole pages, at addresses that memory can have.
pub(crate) fn check_whole(start: HostPtr, size_bytes: u64, page_bytes: u64) -> Result<(), String> {
    let is_whole = start.0.is_multiple_of(page_bytes) && size_bytes.is_multiple_of(page_bytes);
    let is_somewhere = start.0 > 0 && start.0.checked_add(size_bytes).is_some();
    if !is_whole || !is_somewhere || size_bytes == 0 {
        return Err(format!("{start:?} + {size_bytes} bytes is not whole pages"));
    }
    Ok(())
}

/// Gives back memory that a value of this file owns and no longer uses. To unmap what the system
/// joined with its neighbours takes one mapping more. A process that may not have it gives back
/// the memory alone, and keeps the addresses.
fn release(start: usize, size_bytes: usize) {
    if size_bytes == 0 {
        return;
    }
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: called only with a value's own addresses, at its end or cut off at its birth.
    if unsafe { mm::munmap(start, size_bytes) }.is_err() {
        // SAFETY: as above; nobody reads the bytes any more.
        let _ = unsafe { mm::madvise(start, size_bytes, Advice::LinuxDontNeed) };
    }
}

fn system(call: &'static str, size: usize, errno: Errno) -> PagesError {
    PagesError::System { call, size_bytes: size as u64, text: errno.to_string() }
}

#[cfg(test)]
mod tests;
