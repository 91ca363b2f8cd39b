//! What a process dies of when it touches memory that is not there, and what a driver leaves
//! behind. Both are seen best in a process of one's own: these tests run this binary once more.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::thread;

use npu_sys::devices::{HostConfig, HostDriver};
use npu_sys::{AccessMode, Driver, VaRange};

use super::{CAPACITY, HostRig, UNIT};

const CASE: &str = "NPU_SYS_CONFORMANCE_CASE";
const SIGSEGV: i32 = 11;

#[test]
fn a_touch_of_memory_that_is_not_there_is_a_fault() {
    for mode in ["threads", "by_time", "seeded"] {
        let status = |case: &str| in_child(&format!("{mode} {case}"));
        assert!(status("mapped").success(), "the control case must live");
        for case in ["reserved", "no_access", "unmapped", "neighbour", "copied"] {
            let status = status(case);
            assert_eq!(status.signal(), Some(SIGSEGV), "{mode} {case}: {status}");
        }
    }
}

#[test]
fn a_dropped_driver_leaves_nothing_behind() {
    for mode in ["threads", "by_time", "seeded"] {
        let status = in_child(&format!("{mode} dropped"));
        assert!(status.success(), "{mode}: {status}");
    }
}

fn in_child(case: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "host::death::child", "--test-threads=1"]).env(CASE, case);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("running 1 test"));
    // Shown only if the test fails.
    println!("{case}: {printed}{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

/// The child's side of the tests above. On its own it has nothing to do.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let (mode, case) = case.split_once(' ').unwrap();
    let config = match mode {
        "threads" => HostConfig::threads(CAPACITY),
        "by_time" => HostConfig::by_time(CAPACITY),
        _ => HostConfig::lockstep(CAPACITY, 1),
    };
    if case == "dropped" {
        leave_everything(config);
    } else {
        touch(config, case);
    }
}

fn touch(config: HostConfig, case: &str) {
    let driver = HostDriver::new(config).unwrap();
    let rig = HostRig::new(&driver);
    let range = driver.reserve(2 * UNIT).unwrap();
    let half = VaRange { start: range.start, size_bytes: UNIT };
    let chunk = driver.create_chunk(UNIT).unwrap();
    let host = rig.pinned(&[0; 8]);
    let stream = rig.stream();
    let mut address = range.start;
    if case != "reserved" {
        driver.map(half, chunk).unwrap();
    }
    if case != "reserved" && case != "no_access" {
        driver.set_access(half).unwrap();
        // A write, so that the fault below is not the first touch of a fresh page.
        rig.fill(range.start, UNIT, 1, stream).unwrap();
        driver.synchronize_stream(stream).unwrap();
    }
    match case {
        "unmapped" => rig.unmap(half).unwrap(),
        "neighbour" => address = half.end(),
        "copied" => {
            // Submitted in time, but unmapped before it ran: a broken promise.
            let hold = rig.hold(stream);
            for _ in 0..1000 {
                rig.copy_out(range.start, host, 8, stream);
            }
            rig.unmap(half).unwrap();
            hold.release();
            driver.synchronize_stream(stream).unwrap();
        }
        _ => {}
    }
    let pointer = std::ptr::with_exposed_provenance::<u8>(address.0 as usize);
    // SAFETY: the point of the test: where nothing is mapped the process ends here.
    let byte = unsafe { pointer.read_volatile() };
    assert_eq!(byte, 1);
}

fn leave_everything(config: HostConfig) {
    let state = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let chunks = maps.lines().filter(|line| line.contains("npu-sys")).count();
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        (chunks, files)
    };
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let size = || {
        let sizes = fs::read_to_string("/proc/self/statm").unwrap();
        sizes.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    let (before, threads_before) = (state(), threads());
    let round = || {
        let driver = HostDriver::new(config.clone()).unwrap();
        let rig = HostRig::new(&driver);
        let buffer = rig.buffer(16 * UNIT);
        driver.reserve(1 << 32).unwrap();
        let host = driver.allocate_pinned(1 << 30).unwrap();
        for _ in 0..4 {
            let stream = rig.stream();
            rig.recorded(npu_sys::EventKind::Order, stream);
            rig.run(stream, vec![buffer.access(AccessMode::Read)], 1.0, |_| {});
            rig.copy_out(buffer.start(), host, UNIT, stream);
        }
        assert!(state().0 > before.0 && state().1 > before.1, "there is something to leave");
    };
    round();
    assert_eq!(state(), before);
    // The next round may take no further addresses but some for the allocator and stacks.
    let warm = size();
    round();
    assert_eq!(state(), before);
    assert!(size() < warm + (3 << 28), "addresses were left behind");
    // The system lists a thread for a moment after it was joined.
    let gone = (0..1_000_000).any(|_| {
        thread::yield_now();
        threads() == threads_before
    });
    assert!(gone, "threads were left behind");
}
