//! The first write to each page, by several threads near the device.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::io::Errno;
use rustix::mm::{self, Advice};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{HostPages, PageKind, PagesError, system};
use crate::system::numa_node;

/// A thread takes this much at a time: little, because a virtual machine may have to get each
/// page from its host first, which takes long, and then all threads should have their share.
const PIECE_BYTES: usize = 8 << 20;

/// More threads than this do not touch faster: memory itself is the limit.
const THREADS_MAX: usize = 16;

/// Who touches pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Touching {
    /// The node that the memory should lie on; the system chooses where `None`.
    pub numa_node: Option<u32>,
    /// The most threads that do it; 0 for as many as help.
    pub threads: usize,
}

/// Touches all of `pages`.
pub(super) fn all(pages: &HostPages, touching: Touching) -> Result<(), PagesError> {
    part(pages, 0..pages.size_bytes, touching)
}

/// Touches the bytes at `range`.
pub(super) fn part(
    pages: &HostPages,
    range: Range<usize>,
    touching: Touching,
) -> Result<(), PagesError> {
    let near = touching.numa_node.and_then(near_set);
    let threads = match touching.threads {
        0 => usable_cpus(near.as_ref()).min(THREADS_MAX),
        threads => threads,
    };
    let threads = threads.min(range.len().div_ceil(PIECE_BYTES));
    let next = AtomicUsize::new(range.start);
    let touched = if threads <= 1 && near.is_none() {
        pieces(pages, &next, range.end)
    } else {
        thread::scope(|scope| {
            let work = || {
                if let Some(near) = &near {
                    // Elsewhere the memory is only farther away.
                    sched_setaffinity(None, near).ok();
                }
                pieces(pages, &next, range.end)
            };
            let spawned: Vec<_> = (0..threads)
                .filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let ends = spawned.into_iter().map(|thread| thread.join().unwrap_or(Err(Errno::NOMEM)));
            // Without a single thread there is still this one.
            ends.fold(Ok(()), Result::and).and_then(|()| pieces(pages, &next, range.end))
        })
    };
    touched.map_err(|errno| system("madvise", range.len(), errno))
}

/// Touches piece after piece until `end`.
fn pieces(pages: &HostPages, next: &AtomicUsize, end: usize) -> Result<(), Errno> {
    loop {
        let start = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
        if start >= end {
            return Ok(());
        }
        let size = PIECE_BYTES.min(end - start);
        if let Err(errno) = piece(pages, start, size) {
            // The others need not go on.
            next.store(end, Ordering::Relaxed);
            return Err(errno);
        }
    }
}

fn piece(pages: &HostPages, offset: usize, size: usize) -> Result<(), Errno> {
    assert!(offset + size <= pages.size_bytes, "a piece lies in its pages");
    match populate(pages, offset, size) {
        // Kernels before 5.14. Reserved pages are not used there.
        Err(Errno::INVAL) if pages.kind != PageKind::Reserved => {
            write(pages, offset, size);
            Ok(())
        }
        populated => populated,
    }
}

fn populate(pages: &HostPages, offset: usize, size: usize) -> Result<(), Errno> {
    loop {
        // SAFETY: the caller checked that only our own pages are meant; their bytes stay zero.
        let result =
            unsafe { mm::madvise(pages.address(offset), size, Advice::LinuxPopulateWrite) };
        match result {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return result,
        }
    }
}

fn write(pages: &HostPages, offset: usize, size: usize) {
    for at in (offset..offset + size).step_by(rustix::param::page_size()) {
        // SAFETY: the page is ours, nobody else knows it yet, and each thread has its own pieces.
        unsafe { pages.address(at).cast::<u8>().write_volatile(0) };
    }
}

/// Whether the kernel has a way to touch pages that fails softly.
pub(super) fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let page = HostPages::map(rustix::param::page_size(), PageKind::Small);
        page.is_ok_and(|page| populate(&page, 0, page.size_bytes).is_ok())
    })
}

/// The processors of the node that this process may use, if there are any.
fn near_set(index: u32) -> Option<CpuSet> {
    let node = numa_node(index)?;
    let allowed = sched_getaffinity(None).ok()?;
    let mut near = CpuSet::new();
    for cpu in node.cpus.into_iter().map(|cpu| cpu as usize) {
        if cpu < CpuSet::MAX_CPU && allowed.is_set(cpu) {
            near.set(cpu);
        }
    }
    (near.count() > 0).then_some(near)
}

fn usable_cpus(near: Option<&CpuSet>) -> usize {
    match near {
        Some(near) => near.count() as usize,
        None => thread::available_parallelism().map_or(1, usize::from),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::system::numa_nodes;

    fn is_zero(pages: &HostPages) -> bool {
        let first = pages.address(0).cast::<u8>();
        // SAFETY: the pages are ours, mapped, and initialised by the system.
        let bytes = unsafe { std::slice::from_raw_parts(first, pages.size_bytes) };
        bytes.iter().all(|&byte| byte == 0)
    }

    /// Bytes of the mapping that have memory behind them, by the system's own page table.
    fn resident_bytes(pages: &HostPages) -> u64 {
        let page_bytes = rustix::param::page_size();
        let table = File::open("/proc/self/pagemap").expect("readable");
        let mut entries = vec![0; pages.size_bytes / page_bytes * 8];
        let first = pages.start / page_bytes * 8;
        table.read_exact_at(&mut entries, first as u64).expect("the pages are mapped");
        // The highest bit of an entry says that the page is there.
        let there = entries.chunks(8).filter(|entry| entry[7] & 0x80 != 0).count();
        (there * page_bytes) as u64
    }

    #[test]
    fn several_threads_and_both_ways_leave_no_page_untouched() {
        let size = 2 * PIECE_BYTES + 5 * 4096;
        for threads in [0, 1, 3] {
            let pages = HostPages::map_aligned(size).expect("maps");
            assert_eq!(resident_bytes(&pages), 0);
            let touching = Touching { numa_node: None, threads };
            all(&pages, touching).expect("touches");
            assert_eq!(resident_bytes(&pages), size as u64, "{threads} threads");
            assert!(is_zero(&pages));
        }
        let pages = HostPages::map_aligned(size).expect("maps");
        write(&pages, 0, size);
        assert_eq!(resident_bytes(&pages), size as u64);
    }

    #[test]
    fn a_part_is_touched_and_no_more() {
        let pages = HostPages::map(64 * 4096, PageKind::Small).expect("maps");
        part(&pages, 8 * 4096..40 * 4096, Touching::default()).expect("touches");
        assert_eq!(resident_bytes(&pages), 32 * 4096);
    }

    #[test]
    fn threads_stay_where_the_process_may_run() {
        let before = sched_getaffinity(None).expect("known");
        for node in numa_nodes() {
            if let Some(near) = near_set(node.index) {
                let inside = |cpu| !near.is_set(cpu) || before.is_set(cpu);
                assert!((0..CpuSet::MAX_CPU).all(inside));
            }
        }
        assert!(near_set(40_000).is_none(), "there is no such node");
        for numa_node in [Some(0), Some(40_000)] {
            let pages = HostPages::map(16 * 4096, PageKind::Small).expect("maps");
            all(&pages, Touching { numa_node, threads: 2 }).expect("touches");
            assert_eq!(resident_bytes(&pages), pages.size_bytes());
        }
        let after = sched_getaffinity(None).expect("known");
        assert!(before == after, "the caller stays where it was");
    }
}
