//! A device without virtual memory: programs run, nothing moves, and the engine says why.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use swap_core::devices::{FaultDriver, FaultPlan, HostConfig, HostDriver};
use swap_core::{AccessMode, Engine, Error, ErrorKind, OpName, Residency};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::lab::{BLOCK, ENOUGH, Lab, read, work, write};
use super::world::{config, host};

const LIMIT: u64 = 8 * BLOCK;
const WHY: &str = "this driver cannot move memory under an address (host, version ";

fn plain(seed: u64) -> HostConfig {
    HostConfig { has_virtual_memory: false, ..HostConfig::lockstep(2 * LIMIT, seed) }
}

#[test]
fn a_program_that_fits_runs_and_nothing_moves() {
    for seed in 0..8 {
        let mut lab = Lab::with(LIMIT, ENOUGH, plain(seed));
        let kept = lab.make(1);
        let address = lab.engine.address(kept);
        for round in 0..50 {
            // Far more in all than the cap: what is freed serves again, in other sizes too.
            let size_bytes = BLOCK * (1 + round % 3);
            let block = lab.make_sized(size_bytes, round);
            let small = lab.make_sized(600, round + 100);
            let uses = [read(kept, 1), read(small, round + 100), write(block, round + 7)];
            lab.op(&uses).expect("all of it fits");
            lab.op(&[read(block, round + 7)]).expect("it is still there");
            assert_eq!(lab.state(kept), Residency::Resident);
            lab.free(block);
            lab.free(small);
        }
        assert_eq!(lab.engine.address(kept), address);
        let total = lab.total();
        let moved = (total.swapped_out_bytes, total.swapped_in_bytes, total.recomputed_ops);
        assert_eq!((moved, total.misses, total.rescues), ((0, 0, 0), 0, 0));
        assert_eq!(lab.host.ledger().copied_out_bytes, 0);
        lab.finish();
    }
}

#[test]
fn what_does_not_fit_is_out_of_memory_and_the_report_says_why() {
    let mut lab = Lab::with(LIMIT, ENOUGH, plain(1));
    let mut blocks = Vec::new();
    let error = loop {
        match lab.try_make(BLOCK, blocks.len() as u64) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert_eq!(blocks.len() as u64, LIMIT / BLOCK);
    let text = error.to_string();
    let Error::OutOfMemory(report) = error else { panic!("{text}") };
    assert_eq!((report.requested_bytes, report.missing_bytes), (BLOCK, BLOCK));
    assert_eq!((report.segment_bytes, report.limit_bytes), (LIMIT, LIMIT));
    assert_eq!(report.largest.len(), 5);
    let why = report.unswappable.expect("nothing can be swapped here");
    assert!(why.starts_with(WHY) && why.contains("without virtual memory"), "{why}");
    assert!(why.ends_with("): nothing can be swapped"), "{why}");
    assert!(text.contains(&why) && text.contains("would have helped"), "{text}");

    // Nothing was lost, and what is freed serves.
    for (tag, &block) in blocks.iter().enumerate() {
        lab.op(&[read(block, tag as u64)]).expect("it is there");
    }
    lab.free(blocks[3]);
    lab.make(100);
    lab.finish();
}

#[test]
fn a_plan_finds_nothing_to_move() {
    let mut lab = Lab::with(LIMIT, ENOUGH, plain(1));
    let block = lab.make(1);
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    lab.end_step();
    lab.op(&[read(block, 1)]).expect("reads");
    let reports = lab.engine.end_step().expect("the step ends");
    let trace = reports.into_iter().find_map(|report| report.trace).expect("it was recorded");
    assert!(trace.blocks.is_empty(), "only blocks that can move have a place in the trace");
    assert_eq!(trace.segment_bytes, lab.host.ledger().chunk_bytes);
    lab.finish();
}

#[test]
fn whichever_call_fails_the_bytes_stay_and_all_is_given_back() {
    let run = |fault: &Arc<FaultDriver>| -> Result<(), Error> {
        let mut settings = config(LIMIT, ENOUGH);
        settings.record = false;
        let engine = Engine::new(fault.clone(), settings)?;
        let mut ops = engine.op_stack();
        let errors = Arc::default();
        let mut blocks = Vec::new();
        for tag in 0..12 {
            ops.begin(OpName::new("make"))?;
            let block = ops.allocate(BLOCK, "block")?;
            work(&mut ops, &[(block, AccessMode::Write, tag)], &errors)?;
            ops.end()?;
            blocks.push((block, tag));
            if blocks.len() > 6 {
                engine.free(blocks.remove(0).0)?;
            }
        }
        for &(block, tag) in &blocks {
            ops.begin(OpName::new("check"))?;
            work(&mut ops, &[read(block, tag)], &errors)?;
            ops.end()?;
        }
        engine.trim()?;
        engine.synchronize()?;
        assert_eq!(errors.lock().expect("no kernel panics").first(), None);
        Ok(())
    };
    let (mut failed, mut survived) = (0, 0);
    for call in 1.. {
        let host = host(plain(call));
        let fault = Arc::new(FaultDriver::new(host.clone()));
        fault.arm(FaultPlan::once(call, ErrorKind::Failed));
        let result = run(&fault);
        if fault.injected() == 0 {
            result.expect("nothing failed");
            break;
        }
        *(if result.is_ok() { &mut survived } else { &mut failed }) += 1;
        let ledger = host.ledger();
        assert!(ledger.chunk_bytes_peak <= LIMIT);
        let held = (ledger.chunk_bytes, ledger.pinned_bytes, ledger.range_count);
        assert_eq!(held, (0, 0, 0), "call {call}: {:?}, {ledger:?}", fault.hits());
    }
    println!("{failed} runs failed, {survived} went on");
    assert!(failed > 20);
}

/// Keeps the text of all warnings.
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("no subscriber panics").push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn the_engine_warns_once_when_it_opens() {
    let warnings = |device: HostConfig| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        tracing::subscriber::with_default(Warnings(Arc::clone(&seen)), || {
            let host: Arc<HostDriver> = host(device);
            let engine = Engine::new(host, config(LIMIT, ENOUGH)).expect("an engine opens");
            let blocks = [0, 1].map(|_| engine.allocate(BLOCK, "block").expect("there is room"));
            blocks.into_iter().for_each(|block| engine.free(block).expect("it lives"));
        });
        seen.lock().expect("no subscriber panics").clone()
    };
    let seen = warnings(plain(1));
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].starts_with(WHY), "{seen:?}");
    assert_eq!(warnings(HostConfig { has_virtual_memory: true, ..plain(1) }), [""; 0]);
}
