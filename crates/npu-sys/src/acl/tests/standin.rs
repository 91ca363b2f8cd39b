//! The stand-in library: built once, copied without some of its functions, asked what it holds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

#[path = "../../../../acl-standin/built.rs"]
mod built;

/// The stand-in, built beside this test.
pub(super) fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built::standin().unwrap())
}

/// A copy of the stand-in: devices of its own, and perhaps without some functions.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) path: PathBuf,
    // Removed with it. What is loaded stays loaded.
    _folder: TempDir,
}

impl Copied {
    /// A copy without the functions `lacks`.
    pub(super) fn without(lacks: &[&str]) -> Copied {
        static SMALL: OnceLock<Vec<u8>> = OnceLock::new();
        let small = SMALL.get_or_init(|| loaded_part(std::fs::read(library()).unwrap()));
        let mut bytes = small.clone();
        for name in lacks {
            rename(&mut bytes, name);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libascendcl.so");
        std::fs::write(&path, bytes).unwrap();
        Copied { path, _folder: folder }
    }

    /// What its devices hold, by its own count.
    pub(super) fn ledger(&self) -> StandinLedger {
        // SAFETY: the stand-in, which is loaded already.
        let library = unsafe { libloading::Library::new(&self.path) }.unwrap();
        type Ask = unsafe extern "C" fn(i32, *mut StandinLedger) -> i32;
        // SAFETY: the signature is the stand-in's.
        let ask = unsafe { library.get::<Ask>("standin_ledger") }.unwrap();
        let mut ledger = StandinLedger::default();
        // SAFETY: it fills a structure of its own type.
        assert_eq!(unsafe { ask(0, &mut ledger) }, 0);
        ledger
    }
}

/// What one device of the stand-in holds: `StandinLedger` of crate `acl-standin`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub(super) struct StandinLedger {
    pub(super) capacity_bytes: u64,
    pub(super) chunk_bytes: u64,
    pub(super) chunk_bytes_peak: u64,
    pub(super) chunk_count: u64,
    pub(super) mapped_bytes: u64,
    pub(super) mapping_count: u64,
    pub(super) reserved_bytes: u64,
    pub(super) range_count: u64,
    pub(super) pinned_bytes: u64,
    pub(super) pinned_bytes_peak: u64,
    pub(super) registered_bytes: u64,
    pub(super) stream_count: u64,
    pub(super) event_count: u64,
    pub(super) copied_out_bytes: u64,
    pub(super) copied_in_bytes: u64,
}

impl StandinLedger {
    /// Asserts that nothing is held.
    pub(super) fn assert_empty(&self) {
        let held = [self.chunk_count, self.mapping_count, self.range_count, self.pinned_bytes];
        assert_eq!(held, [0; 4], "{self:?}");
        let held = [self.registered_bytes, self.stream_count, self.event_count];
        assert_eq!(held, [0; 3], "{self:?}");
    }
}

/// An ELF file without what the loader does not read: mostly debugging information.
pub(super) fn loaded_part(mut bytes: Vec<u8>) -> Vec<u8> {
    assert_eq!(&bytes[..6], b"\x7fELF\x02\x01", "64 bits, little endian");
    let number = |at: usize, size: usize| {
        let mut whole = [0; 8];
        whole[..size].copy_from_slice(&bytes[at..at + size]);
        u64::from_le_bytes(whole) as usize
    };
    let (start, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let loaded = (0..count).map(|index| start + index * size).filter(|&at| number(at, 4) == 1);
    let end = loaded.map(|at| number(at + 8, 8) + number(at + 32, 8)).max().unwrap();
    bytes.truncate(end);
    // No table of sections any more.
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    bytes
}

/// Renames a function in the table of names, so that nobody finds it.
fn rename(bytes: &mut [u8], name: &str) {
    let needle = [b"\0", name.as_bytes(), b"\0"].concat();
    let found: Vec<usize> = bytes
        .windows(needle.len())
        .enumerate()
        .filter(|(_, window)| *window == needle)
        .map(|(at, _)| at + name.len())
        .collect();
    // The stand-in may lack a function itself, and mention one elsewhere.
    for at in found {
        bytes[at] = b'~';
    }
}

/// Runs a test again in a process of its own with other settings, where `body` is then run.
///
/// The stand-in reads its settings when it starts, so they are a whole process's.
pub(super) fn with_settings(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    const MARK: &str = "SMARTSWAP_TEST_CHILD";
    if std::env::var(MARK).is_ok_and(|child| child == test) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(MARK, test)
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test} with {settings:?}: {text}{errors}");
    assert!(text.contains("1 passed"), "{test} is not a test: {text}");
}
