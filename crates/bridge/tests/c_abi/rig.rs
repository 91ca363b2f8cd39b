//! An engine to use the interface on, and memory that holds patterns.

use std::ffi::{c_int, c_void};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) use super::interface::*;

pub(crate) const MIB: u64 = 1 << 20;
/// Blocks of the tests.
pub(crate) const BLOCK: u64 = MIB;

/// One test at a time: a process has one engine.
static TURN: Mutex<()> = Mutex::new(());

/// The right to open an engine. It leaves none behind.
pub(crate) struct Turn {
    _guard: MutexGuard<'static, ()>,
}

impl Turn {
    pub(crate) fn take() -> Turn {
        let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(smartswap_is_open(), 0, "a test left its engine open");
        Turn { _guard: guard }
    }
}

impl Drop for Turn {
    /// A test that fails takes its engine along, so that it fails alone.
    fn drop(&mut self) {
        if std::thread::panicking() && smartswap_is_open() != 0 {
            abandon();
        }
    }
}

/// Closes the engine in whatever state a failed test leaves it. What cannot be ended stays open,
/// and the next test says so.
fn abandon() {
    extern "C" fn add(all: *mut c_void, start: *mut c_void, _size_bytes: u64, _is_resident: c_int) {
        // SAFETY: `smartswap_list` passes its own list on, which nobody else uses meanwhile.
        unsafe { &mut *all.cast::<Vec<*mut c_void>>() }.push(start);
    }
    while smartswap_end() == OK {}
    let mut all: Vec<*mut c_void> = Vec::new();
    // SAFETY: `add` takes a pointer to such a list.
    unsafe { smartswap_list(Some(add), (&raw mut all).cast()) };
    for memory in all {
        if smartswap_free(memory) != OK {
            smartswap_free_swapped(memory, 0);
        }
    }
    smartswap_close();
}

/// An open engine of the host device.
pub(crate) struct Rig {
    _turn: Turn,
    pub(crate) limit_bytes: u64,
}

impl Rig {
    /// An engine under this cap, whose blocks of 64 KiB and more move.
    pub(crate) fn open(limit_bytes: u64) -> Rig {
        Rig::with(Settings { memory_bytes: limit_bytes, ..default_settings() })
    }

    pub(crate) fn with(settings: Settings) -> Rig {
        let turn = Turn::take();
        let min_block_bytes = settings.min_block_bytes.max(64 << 10);
        let host_memory_bytes = settings.host_memory_bytes.max(256 * MIB);
        let settings = Settings { min_block_bytes, host_memory_bytes, ..settings };
        assert_eq!(open(Some(&settings)), OK, "{}", last_error());
        Rig { _turn: turn, limit_bytes: stats().limit_bytes }
    }

    /// The cap, as the engine and as the system see it.
    pub(crate) fn check_cap(&self) {
        let reserved = stats().reserved;
        assert!(reserved.peak <= self.limit_bytes, "{reserved:?}");
        assert!(device_bytes() <= self.limit_bytes);
    }

    pub(crate) fn close(self) {
        self.check_cap();
        assert_eq!(smartswap_close(), OK, "{}", last_error());
        assert_eq!(device_bytes(), 0, "the device is gone");
    }
}

/// Bytes that the system has given to the software device, whatever anybody claims: it is a file
/// in memory.
pub(crate) fn device_bytes() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").expect("Linux");
    let of_device = open.filter_map(|entry| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        let is_device = target.to_string_lossy().contains("memfd:npu-sys host device");
        is_device.then(|| std::fs::metadata(&path).map_or(0, |file| file.blocks() * 512))
    });
    of_device.sum()
}

/// The `index`-th word of memory that holds pattern `tag`.
fn word(tag: u64, index: usize) -> u64 {
    tag.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index as u64)
}

/// Writes a pattern. Call it where the memory is there: in an op that touched it.
pub(crate) fn fill(memory: *mut c_void, size_bytes: u64, tag: u64) {
    let words = memory.cast::<u64>();
    for index in 0..size_bytes as usize / 8 {
        // SAFETY: inside a live allocation that the caller made resident; a mistake faults.
        unsafe { words.wrapping_add(index).write_volatile(word(tag, index)) };
    }
}

/// Compares with a pattern, where [`fill`] could write it.
pub(crate) fn assert_holds(memory: *const c_void, size_bytes: u64, tag: u64) {
    let words = memory.cast::<u64>();
    for index in 0..size_bytes as usize / 8 {
        // SAFETY: as in `fill`.
        let is = unsafe { words.wrapping_add(index).read_volatile() };
        assert_eq!(is, word(tag, index), "word {index} of pattern {tag}");
    }
}

/// An op that allocates a block and writes it.
pub(crate) fn make(size_bytes: u64, tag: u64) -> *mut c_void {
    assert_eq!(begin("make"), OK, "{}", last_error());
    let memory = smartswap_allocate(size_bytes, 0);
    assert!(!memory.is_null(), "{}", last_error());
    assert_eq!(smartswap_touch(memory, WRITE), OK, "{}", last_error());
    fill(memory, size_bytes, tag);
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    memory
}

/// An op that reads a block.
pub(crate) fn check(memory: *mut c_void, size_bytes: u64, tag: u64) {
    assert_eq!(begin("check"), OK, "{}", last_error());
    assert_eq!(smartswap_touch(memory, READ), OK, "{}", last_error());
    assert_holds(memory, size_bytes, tag);
    assert_eq!(smartswap_end(), OK, "{}", last_error());
}

pub(crate) fn free(memory: *mut c_void) {
    assert_eq!(smartswap_free(memory), OK, "{}", last_error());
}

pub(crate) fn step() {
    assert_eq!(smartswap_step(), OK, "{}", last_error());
}

/// Asserts that a call failed as it should, and says so.
pub(crate) fn assert_fails(code: c_int, expect: c_int, words: &str) {
    assert_eq!(code, expect, "{}", last_error());
    assert!(last_error().contains(words), "'{}' has no '{words}'", last_error());
}
