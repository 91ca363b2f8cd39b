//! A second address for host memory, so that the device's address differs from the host's.

use std::ffi::c_void;
use std::fs;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};

/// Where the device sees host memory.
#[derive(Debug)]
pub(crate) struct Alias {
    start: u64,
    /// Bytes of our own mapping; 0 if the device uses the host's address.
    size_bytes: usize,
}

/// What the system says of a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// Nothing is mapped in all or some of it.
    Missing,
    /// Nobody's file, this process's alone, writable.
    Private,
    /// One mapping that can be made twice.
    Shared,
    /// Anything else.
    Other,
}

impl Alias {
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Whether the device has an address of its own.
    pub(crate) fn is_apart(&self) -> bool {
        self.size_bytes > 0
    }

    /// Shows the memory at another address. `None` if it is not all there.
    ///
    /// Private memory becomes shared memory with the same bytes at the same address, because only
    /// that can be mapped twice. Nobody may write to it meanwhile.
    pub(crate) fn of(start: u64, size_bytes: u64) -> Option<Alias> {
        let backing = backing(start, size_bytes);
        let aliased = match backing {
            Backing::Missing => return None,
            Backing::Private => {
                let is_kept = is_kept_from_children(start);
                let made = make_shareable(start, size_bytes, true);
                if is_kept && made.is_ok() {
                    keep_from_children(start, size_bytes);
                }
                made.and_then(|()| again(start, size_bytes)).ok()
            }
            Backing::Shared => again(start, size_bytes).ok(),
            Backing::Other => None,
        };
        Some(aliased.unwrap_or(Alias { start, size_bytes: 0 }))
    }
}

impl Drop for Alias {
    fn drop(&mut self) {
        if self.size_bytes > 0 {
            // SAFETY: our own mapping; the host's stays. No work uses it: the caller of the
            // unregistering function promised that.
            let released = unsafe { mm::munmap(pointer(self.start), self.size_bytes) };
            released.expect("unmapping whole pages of our own fails only for lack of memory");
        }
    }
}

/// Replaces memory by shared memory that can be mapped twice, at the same address.
pub(crate) fn make_shareable(start: u64, size_bytes: u64, keep_bytes: bool) -> Result<(), Errno> {
    let file = memfd_create("acl-standin pinned", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size_bytes)?;
    let size = size_bytes as usize;
    if keep_bytes {
        let piece_bytes = 64 << 10;
        for offset in (0..size).step_by(piece_bytes) {
            let length = piece_bytes.min(size - offset);
            let from = pointer(start + offset as u64).cast_const().cast::<u8>();
            // SAFETY: the system says that the memory is mapped and readable, and the caller of
            // the registering function lends it to us for the call.
            let bytes = unsafe { std::slice::from_raw_parts(from, length) };
            if bytes.iter().any(|&byte| byte != 0) {
                write_at(&file, bytes, offset as u64)?;
            }
        }
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range holds memory that the caller handed over, and the file the same bytes.
    unsafe { mm::mmap(pointer(start), size, access, flags, &file, 0) }.map(drop)
}

fn write_at(file: &rustix::fd::OwnedFd, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::pwrite(file, bytes, offset)?;
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

/// Maps shared memory a second time.
fn again(start: u64, size_bytes: u64) -> Result<Alias, Errno> {
    let size = size_bytes as usize;
    // SAFETY: an old size of 0 leaves the old mapping as it is and makes another one of the same
    // shared memory, where nothing was.
    let second = unsafe { mm::mremap(pointer(start), 0, size, MremapFlags::MAYMOVE) }?;
    Ok(Alias { start: second.expose_provenance() as u64, size_bytes: size })
}

/// Asks the system what is behind a range.
fn backing(start: u64, size_bytes: u64) -> Backing {
    let end = start + size_bytes;
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return Backing::Other };
    let mut at = start;
    let mut found = None;
    for (from, to, kind) in maps.lines().filter_map(mapping) {
        if to <= at {
            continue;
        }
        if from > at {
            break;
        }
        let whole = from <= start && to >= end;
        let kind = if kind == Backing::Shared && !whole { Backing::Other } else { kind };
        found = match found {
            None => Some(kind),
            Some(before) if before == kind => Some(kind),
            Some(_) => Some(Backing::Other),
        };
        at = to;
        if at >= end {
            return found.unwrap_or(Backing::Missing);
        }
    }
    Backing::Missing
}

/// Whether forked children do not get the memory at an address.
fn is_kept_from_children(address: u64) -> bool {
    let Ok(maps) = fs::read_to_string("/proc/self/smaps") else { return false };
    let mut is_here = false;
    for line in maps.lines() {
        if let Some((from, to, _)) = mapping(line) {
            is_here = (from..to).contains(&address);
        } else if is_here && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    false
}

fn keep_from_children(start: u64, size_bytes: u64) {
    // SAFETY: it changes nothing in this process but what its children will get.
    let kept =
        unsafe { mm::madvise(pointer(start), size_bytes as usize, mm::Advice::LinuxDontFork) };
    // Where the system refuses, children share it.
    kept.ok();
}

/// One line of the table: addresses and kind.
fn mapping(line: &str) -> Option<(u64, u64, Backing)> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let name = words.nth(3).unwrap_or_default();
    let kind = match access {
        "rw-p" if name.is_empty() => Backing::Private,
        "rw-s" => Backing::Shared,
        _ => Backing::Other,
    };
    let parse = |text| u64::from_str_radix(text, 16).ok();
    Some((parse(from)?, parse(to)?, kind))
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
