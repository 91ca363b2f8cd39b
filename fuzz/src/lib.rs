//! What must hold for any bytes at all that a reader of files is given.

use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use policy::{
    FileError, RecordedConfig, SavedPlan, Trace, check_trace, read_plan, read_trace,
    save_in_parts, write_trace,
};

/// Traces: an error of one line, or a trace that is sound, no larger than its file can say, and
/// the same when written in our form and when compressed.
pub fn check_trace_file(bytes: &[u8]) {
    let is_packed = bytes.starts_with(&[0x1f, 0x8b]);
    let found = read(bytes);
    match &found {
        Ok(trace) => {
            assert_eq!(check_trace(trace), Ok(()));
            let parts = trace.events.len() + trace.ops.len() + trace.blocks.len();
            assert!(is_packed || parts <= 4 * bytes.len(), "{parts} of {} bytes", bytes.len());
            let again = read(write_trace(trace).as_bytes()).expect("what we write can be read");
            assert_eq!(*trace, again);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
    if !is_packed {
        let again = read(&gzip(bytes));
        assert_eq!(found.is_ok(), again.is_ok(), "{found:?} {again:?}");
        assert!(found.ok() == again.ok(), "it is something else when compressed");
    }
}

/// Plans: an error of one line, or a plan that comes back when saved.
///
/// No random change keeps a checksum right, so the right one is put in its place.
pub fn check_plan_file(bytes: &[u8]) {
    let path = Path::new("plan.json");
    let plan = match read_plan(bytes, path) {
        Err(FileError::Checksum { expected, found, .. }) if !expected.is_empty() => {
            let text = String::from_utf8_lossy(bytes).replacen(&expected, &found, 1);
            read_plan(text.as_bytes(), path)
        }
        other => other,
    };
    match plan {
        Ok(plan) => check_saved(&plan),
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

fn check_saved(plan: &SavedPlan) {
    let path = std::env::temp_dir().join(format!("fuzz-plan-{}.json", std::process::id()));
    save_in_parts(&path, &plan.plan, plan.part_bytes).expect("what was read can be saved");
    assert_eq!(policy::load(&path).expect("it was just saved"), *plan);
}

fn read(bytes: &[u8]) -> Result<Trace, FileError> {
    read_trace(bytes, Path::new("trace.json"), &RecordedConfig::default())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}
