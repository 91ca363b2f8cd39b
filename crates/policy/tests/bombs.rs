//! Compressed files that unpack to far more than a trace can be are refused, and what that takes
//! of memory is bounded by the limit for traces, not by what the file would unpack to.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use policy::{FileError, RecordedConfig, load_trace};

const MIB: usize = 1 << 20;

fn gzip(parts: usize, part: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for _ in 0..parts {
        encoder.write_all(part).expect("a vector takes all");
    }
    encoder.finish().expect("a vector takes all")
}

/// The most memory that this process has had so far, in MiB.
fn peak_mib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? >> 10)
}

fn load(folder: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let path = folder.join("bomb.json.gz");
    fs::write(&path, bytes).expect("the folder can be written");
    load_trace(&path, &RecordedConfig::default()).map(|_| ())
}

#[test]
fn bombs_are_refused_within_bounded_memory() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    // Many streams in a row, of 4 GiB together, and a single one.
    let spaces = vec![b' '; MIB];
    let member = gzip(64, &spaces);
    let many = member.repeat(64);
    assert!(many.len() < 8 * MIB, "{} bytes are not a bomb", many.len());
    let result = load(folder.path(), &many);
    assert!(matches!(result, Err(FileError::TooLarge { .. })), "{result:?}");
    let one = gzip(600, &spaces);
    let result = load(folder.path(), &one);
    assert!(matches!(result, Err(FileError::TooLarge { .. })), "{result:?}");
    if let Some(peak_mib) = peak_mib() {
        assert!(peak_mib < 1200, "{peak_mib} MiB to refuse what may have 512");
    }
}

#[test]
fn a_file_in_a_packed_file_is_no_trace() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let inner = gzip(1, b"{}");
    let result = load(folder.path(), &gzip(1, &inner));
    assert!(matches!(result, Err(FileError::Foreign { .. })), "{result:?}");
    let trailing = [&inner[..], b"and something else"].concat();
    let result = load(folder.path(), &trailing);
    assert!(matches!(result, Err(FileError::Io { .. })), "{result:?}");
}
