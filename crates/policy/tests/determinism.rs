//! Promise: the same trace and settings give the same plan, to the byte: in each run, on any number
//! of threads at once, and in builds of every kind.
//!
//! The checksums of the plans lie in `data/plan-checksums.txt`; `cargo xtask test` runs this test
//! in the test build and in the release build. When the planner has been changed on purpose,
//! `UPDATE_CHECKSUMS=1 cargo test -p policy --test determinism` writes them anew.

use std::path::Path;
use std::{env, fs, thread};

use policy::synthetic::{LargeShape, RandomShape, large_trace, random_trace};
use policy::{
    GenerateConfig, Link, Machine, Plan, RecomputeOption, RecordedConfig, Trace, generate,
    load_trace, replayable_blocks, save, simulate,
};

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// A made-up step, a recorded one, and a random one.
fn traces() -> Vec<(&'static str, Trace)> {
    let recorded = load_trace(&data("gpt12k.json.gz"), &RecordedConfig::default());
    vec![
        ("large", large_trace(&LargeShape::with_ops(1_000))),
        ("recorded", recorded.expect("the file is sound")),
        ("random", random_trace(7, &RandomShape { ops: 200, ..RandomShape::small() })),
    ]
}

/// The file of the plan for a share of the trace's peak.
fn plan_bytes(trace: &Trace, percent: u64) -> Vec<u8> {
    let link =
        Link { out_bytes_per_us: 50_000.0, in_bytes_per_us: 47_000.0, both_bytes_per_us: 40_000.0 };
    let (limit_bytes, host_limit_bytes) = (1 << 50, 1 << 50);
    let machine = Machine { limit_bytes, host_limit_bytes, link, copy_submit_us: 8.0 };
    let peak_bytes = simulate(trace, &Plan::default(), &machine).resident_bytes_peak;
    let options: Vec<RecomputeOption> = replayable_blocks(trace)
        .into_iter()
        .map(|r| RecomputeOption { block: r.block, replay_us: 5.0 + r.device_us })
        .collect();
    let machine = machine.with_limit(peak_bytes * percent / 100);
    let made = generate(trace, &machine, &GenerateConfig::default(), &options);
    assert!(!made.plan.actions.is_empty(), "nothing was planned");
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.json");
    save(&path, &made.plan).expect("the folder can be written");
    fs::read(&path).expect("it was just written")
}

/// One line for each plan: the trace, the share of its peak, the length and CRC-32 of the file.
fn checksums() -> String {
    let mut lines = String::new();
    for (name, trace) in traces() {
        for percent in [80, 60] {
            let bytes = plan_bytes(&trace, percent);
            let crc32 = crc32fast::hash(&bytes);
            lines += &format!("{name} {percent} {} {crc32:08x}\n", bytes.len());
        }
    }
    lines
}

#[test]
fn a_plan_is_the_same_to_the_byte_in_every_build() {
    let (path, found) = (data("plan-checksums.txt"), checksums());
    if env::var_os("UPDATE_CHECKSUMS").is_some() {
        fs::write(&path, &found).expect("the folder can be written");
    }
    let expected = fs::read_to_string(&path).expect("the file is there");
    assert_eq!(found, expected, "see the head of this file if the planner was changed");
}

#[test]
fn a_plan_is_the_same_on_any_number_of_threads() {
    let first = checksums();
    for count in [1, 2, 8] {
        let threads: Vec<_> = (0..count).map(|_| thread::spawn(checksums)).collect();
        for thread in threads {
            assert_eq!(thread.join().expect("no plan panics"), first, "{count} threads");
        }
    }
}
