//! Promise: docs/plan-format.md is enough to simulate a plan. A simulator in Python that was
//! written from it alone agrees with ours to the byte and the microsecond.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::Command;

use adaptive::synthetic::{Numbers, RandomShape, TraceBuilder, random_trace};
use adaptive::{
    Action, ActionKind, BlockIndex, GenerateConfig, HostCosts, JointConfig, JointPlanner, Link,
    Machine, OpIndex, Phase, Plan, PlanBlock, RecordedConfig, Trace, in_parts, load_trace,
    part_bytes, save, save_in_parts, save_trace, simulate,
};
use serde_json::Value;

use crate::plan::recorded;
use crate::rig::smartswap;

const CASES: u64 = 120;
/// Rates of the link in bytes per microsecond: out, in, both ways.
const RATES: [f64; 3] = [24_000.0, 26_000.0, 19_000.0];
/// What both must say.
const FIGURES: [&str; 12] = [
    "peak_bytes",
    "held_bytes_peak",
    "host_bytes_peak",
    "step_us",
    "stall_us",
    "swapped_out_bytes",
    "swapped_in_bytes",
    "clean_swap_outs",
    "recomputed_ops",
    "recomputed_us",
    "misses",
    "rescues",
];

/// A step, a plan and limits, as files and numbers.
struct Case {
    trace: PathBuf,
    plan: PathBuf,
    limit_bytes: u64,
    host_bytes: u64,
}

impl Case {
    fn ours(&self) -> Value {
        let [limit, host] = [self.limit_bytes, self.host_bytes].map(|bytes| bytes.to_string());
        let [out, back, both] = RATES.map(|rate| format!("{}MB/s", rate as u64));
        let files = ["simulate", text(&self.trace), "--plan", text(&self.plan), "--json"];
        let limits = ["--memory", &limit, "--host-memory", &host];
        let rates = ["--link-out", &out, "--link-in", &back, "--link-both", &both];
        let ran = smartswap(&[&files[..], &limits, &rates].concat());
        serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
    }

    fn theirs(&self) -> Value {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let ran = Command::new("python3")
            .arg("-B")
            .arg(here.join("tests/judge/simulator.py"))
            .args([&self.trace, &self.plan])
            .args([self.limit_bytes.to_string(), self.host_bytes.to_string()])
            .args(RATES.map(|rate| rate.to_string()))
            .arg(here.join("../../docs/plan-format.md"))
            .output()
            .expect("python3 is there");
        let said = String::from_utf8_lossy(&ran.stderr);
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{said}"))
    }

    /// Whether the step runs; panics where the two do not agree.
    fn check(&self, name: &str) -> Value {
        let (ours, theirs) = (self.ours(), self.theirs());
        assert_eq!(ours["infeasible"], theirs["infeasible"], "{name}: {ours} {theirs}");
        for figure in FIGURES.into_iter().filter(|_| ours["infeasible"].is_null()) {
            let [one, other] = [&ours, &theirs].map(|figures| figures[figure].as_f64());
            let (one, other) = (one.expect("a number"), other.expect("a number"));
            let near = (one - other).abs() <= 1e-9 * one.abs().max(1e3);
            assert!(near, "{name}: {figure}: {ours} {theirs}");
        }
        theirs
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

fn machine(limit_bytes: u64, host_limit_bytes: u64) -> Machine {
    let [out_bytes_per_us, in_bytes_per_us, both_bytes_per_us] = RATES;
    let link = Link { out_bytes_per_us, in_bytes_per_us, both_bytes_per_us };
    Machine { limit_bytes, host_limit_bytes, link, copy_submit_us: 8.0 }
}

fn planned(trace: &Trace, machine: Machine) -> Plan {
    let generate = GenerateConfig { effort: 1, min_block_bytes: 1, ..GenerateConfig::default() };
    let config = JointConfig { generate, ..JointConfig::default() };
    JointPlanner::new(machine, config).make(trace).plan
}

/// Adds moves that make no sense, at any op, and takes some away.
fn disturb(plan: &mut Plan, trace: &Trace, numbers: &mut Numbers) {
    let kinds = [ActionKind::SwapOut, ActionKind::SwapIn, ActionKind::Discard, ActionKind::Replay];
    plan.actions.retain(|_| numbers.chance(90));
    for _ in 0..numbers.below(400) {
        let mut any = |count: usize| numbers.below(count as u64) as u32;
        let (op, block) = (OpIndex(any(trace.ops.len())), BlockIndex(any(trace.blocks.len())));
        let (kind, phase) = (kinds[any(4) as usize], [Phase::Begin, Phase::End][any(2) as usize]);
        let due = [op, OpIndex(any(trace.ops.len()))][any(2) as usize];
        plan.actions.push(Action { op, phase, kind, block, due });
    }
    plan.actions.sort_by_key(|action| (action.op, action.phase));
    let block = |(index, block): (u32, &adaptive::TraceBlock)| PlanBlock {
        index: BlockIndex(index),
        size_bytes: block.size_bytes,
        origin: block.origin,
    };
    plan.blocks = (0..).zip(&trace.blocks).map(block).collect();
}

/// Times of the host that make some steps and not others.
fn give_host_times(trace: &mut Trace, numbers: &mut Numbers) {
    let most_us = 1 + numbers.below(3000);
    for op in trace.ops.iter_mut().filter(|op| op.depth == 0) {
        op.host_us = numbers.below(most_us) as f64;
        op.host_waits = numbers.chance(10);
    }
    if numbers.chance(50) {
        trace.host_costs = HostCosts { replay_us: 250.0, move_us: 33.0 };
    }
}

#[test]
fn a_simulator_written_from_the_document_agrees_on_random_steps_and_plans() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let (mut ran, mut again, mut chained, mut rescued, mut clean, mut short) = (0, 0, 0, 0, 0, 0);
    for seed in 0..CASES {
        let mut numbers = Numbers::new(seed);
        let nested_recipes = 30 * (seed % 3);
        let shape = RandomShape { nested_recipes, carried: 3, ..RandomShape::small() };
        let mut trace = random_trace(seed, &shape);
        if seed % 2 > 0 {
            give_host_times(&mut trace, &mut numbers);
        }
        if trace.blocks.is_empty() {
            continue;
        }
        let free = simulate(&trace, &Plan::default(), &machine(1 << 50, 0));
        let limit_bytes = free.resident_bytes_peak * (45 + numbers.below(55)) / 100;
        let host_bytes = if seed % 4 == 0 { limit_bytes / 3 } else { 1 << 40 };
        let mut plan = planned(&trace, machine(limit_bytes, host_bytes));
        if seed % 3 > 0 {
            disturb(&mut plan, &trace, &mut numbers);
        }
        let files = ["trace", "plan"].map(|name| folder.path().join(format!("{name}{seed}.json")));
        save_trace(&files[0], &trace).expect("it can be written");
        save(&files[1], &plan).expect("it can be written");
        let [trace, plan] = files;
        let figures = Case { trace, plan, limit_bytes, host_bytes }.check(&format!("seed {seed}"));
        let count = |figure: &str| u64::from(figures[figure].as_u64() > Some(0));
        ran += count("step_us").max(u64::from(figures["step_us"].is_number()));
        again += count("recomputed_ops");
        chained += count("kept_freed");
        rescued += count("rescues");
        clean += count("clean_swap_outs");
        short += count("infeasible");
    }
    let seen = (ran, again, chained, rescued, clean, short);
    println!("steps that ran, with replays, chains, rescues, clean swap-outs; without: {seen:?}");
    assert!(ran > CASES / 3 && again > CASES / 6 && rescued > CASES / 6, "{seen:?}");
    assert!(chained > 3 && clean > 3, "{seen:?}");
}

/// A step whose ops work on lists, or on what could be taken for lists, with any names.
fn lists(numbers: &mut Numbers) -> Trace {
    const NAMES: [&str; 11] = [
        "aten::_fused_adamw_",
        "aten::_fused_adam_.tensor_lr",
        "aten::_fused_sgd_",
        "aten::_fused_adagrad_",
        "aten::_foreach_mul_.Scalar",
        "aten::_foreach_norm",
        "aten::_amp_foreach_non_finite_check_and_unscale_",
        "aten::_fused_rms_norm",
        "aten::mul",
        "_foreach_mul_",
        "mine::_foreach_mul_",
    ];
    let mut builder = TraceBuilder::new();
    let length = 2 + numbers.below(5) as usize;
    let alike = numbers.chance(30);
    let mut units = || if alike { 3 } else { 1 + numbers.below(6) };
    let sizes: Vec<u64> = (0..length).map(|_| units() << 21).collect();
    let all: Vec<BlockIndex> =
        (0..5 * length).map(|at| builder.persistent("state", sizes[at % length])).collect();
    builder.segments(1 << 21);
    for _ in 0..3 + numbers.below(5) {
        let before = builder.allocate("batch", (1 + numbers.below(4)) << 21);
        let nested = numbers.chance(15);
        if nested {
            builder.begin("optimizer", 50.0, false);
        }
        let us = 10.0 + numbers.below(3000) as f64;
        builder.begin(NAMES[numbers.below(11) as usize], us, numbers.chance(10));
        let count = 1 + numbers.below(5) as usize;
        let reads = if numbers.chance(50) { numbers.below(count as u64) as usize } else { 0 };
        for (at, &block) in all[..count * length].iter().enumerate() {
            match at / length {
                list if list < reads => builder.read(block),
                _ if numbers.chance(2) => builder.write(block),
                _ => builder.update(block),
            }
        }
        if numbers.chance(20) {
            // Again, which makes no other list of it; or not one of a list.
            let block = [all[0], before][numbers.below(2) as usize];
            builder.read(block);
        }
        builder.end();
        if nested {
            builder.end();
        }
        let after = builder.allocate("result", 1 << 22);
        builder.compute("aten::mm", 200.0, &[all[0]], after);
        builder.free(before);
        builder.free(after);
    }
    builder.finish()
}

#[test]
fn it_runs_operators_over_lists_in_the_same_parts() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let files = ["trace.json", "plan.json"].map(|name| folder.path().join(name));
    let (mut split, mut ran) = (0, 0);
    for seed in 0..CASES {
        let mut numbers = Numbers::new(seed);
        let trace = lists(&mut numbers);
        let part_bytes = NonZeroU64::new((1 + numbers.below(48)) << 21).expect("above 0");
        let made = in_parts(&trace, part_bytes);
        split += u64::from(made.is_some());
        let parted = made.map_or_else(|| trace.clone(), |made| made.trace);
        let peak = simulate(&parted, &Plan::default(), &machine(1 << 50, 0)).resident_bytes_peak;
        let limit_bytes = peak * (50 + numbers.below(50)) / 100;
        let host_bytes = 1 << 40;
        let mut plan = planned(&parted, machine(limit_bytes, host_bytes));
        if seed % 3 > 0 {
            disturb(&mut plan, &parted, &mut numbers);
        }
        save_trace(&files[0], &trace).expect("it can be written");
        save_in_parts(&files[1], &plan, Some(part_bytes)).expect("it can be written");
        let [trace, plan] = files.clone();
        let theirs = Case { trace, plan, limit_bytes, host_bytes }.check(&format!("seed {seed}"));
        assert_eq!(theirs["signature"], format!("{:016x}", parted.signature.0), "seed {seed}");
        ran += u64::from(theirs["step_us"].is_number());
    }
    println!("steps in parts, steps that ran: {split} {ran}");
    assert!(split > CASES / 3 && ran > CASES / 3, "{split} {ran}");
}

#[test]
fn it_runs_a_recorded_step_in_parts_as_we_do() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let trace = load_trace(&recorded(), &RecordedConfig::default()).expect("it was recorded");
    let peak = simulate(&trace, &Plan::default(), &machine(1 << 50, 0)).resident_bytes_peak;
    for percent in [50, 20] {
        let (limit_bytes, host_bytes) = (peak * percent / 100, 1 << 42);
        let part_bytes = part_bytes(limit_bytes);
        let parted = in_parts(&trace, part_bytes).expect("its optimizer is large").trace;
        let plan = folder.path().join("plan.json");
        let made = planned(&parted, machine(limit_bytes, host_bytes));
        save_in_parts(&plan, &made, Some(part_bytes)).expect("it is written");
        let case = Case { trace: recorded(), plan, limit_bytes, host_bytes };
        let theirs = case.check(&format!("{percent} %"));
        assert_eq!(theirs["signature"], format!("{:016x}", parted.signature.0));
        assert!(theirs["step_us"].is_number(), "{theirs}");
    }
}

#[test]
fn it_reads_a_recorded_step_and_its_signature_as_we_do() {
    let folder = tempfile::tempdir().expect("a folder for files");
    let path = recorded();
    let trace = load_trace(&path, &RecordedConfig::default()).expect("it was recorded");
    for percent in [90, 80] {
        let peak = simulate(&trace, &Plan::default(), &machine(1 << 50, 0)).resident_bytes_peak;
        let limit_bytes = peak * percent / 100;
        let host_bytes = 1 << 42;
        let plan = folder.path().join("plan.json");
        save(&plan, &planned(&trace, machine(limit_bytes, host_bytes))).expect("it is written");
        let case = Case { trace: path.clone(), plan, limit_bytes, host_bytes };
        let theirs = case.check(&format!("{percent} %"));
        assert_eq!(theirs["signature"], format!("{:016x}", trace.signature.0));
        assert!(theirs["swapped_out_bytes"].as_u64() > Some(0), "{theirs}");
    }
}
