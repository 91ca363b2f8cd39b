//! Tests of plan and trace files: round trips, damage of every kind, crashes at every call.

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

use proptest::prelude::*;
use swap_core::{
    AccessMode, Action, ActionKind, BlockIndex, HostCosts, OpIndex, Origin, Phase, PlanBlock,
    Signature, TraceBlock, TraceEvent, TraceOp,
};

use super::*;
use crate::check::TraceFault;
use crate::error::PlanFault;

mod recorded;

fn block(index: u32, origin: Origin) -> PlanBlock {
    PlanBlock { index: BlockIndex(index), size_bytes: 8 << 20, origin }
}

fn action(op: u32, phase: Phase, kind: ActionKind, block: u32, due: u32) -> Action {
    Action { op: OpIndex(op), phase, kind, block: BlockIndex(block), due: OpIndex(due) }
}

/// A plan with every kind of everything.
fn sample() -> Plan {
    Plan {
        signature: Signature(0xfedc_ba98_7654_3210),
        op_count: 5,
        blocks: vec![
            block(0, Origin::Persistent),
            block(2, Origin::Op(OpIndex(1))),
            block(7, Origin::Before(OpIndex(5))),
        ],
        actions: vec![
            action(0, Phase::Begin, ActionKind::SwapIn, 0, 1),
            action(1, Phase::End, ActionKind::SwapOut, 0, 3),
            action(1, Phase::End, ActionKind::Discard, 2, 1),
            action(3, Phase::Begin, ActionKind::Replay, 2, 3),
            action(4, Phase::End, ActionKind::SwapOut, 7, 0),
        ],
    }
}

fn other_sample() -> Plan {
    Plan { op_count: 6, signature: Signature(1), ..sample() }
}

/// The plan of a step as it was recorded.
fn whole(saved: SavedPlan) -> Plan {
    assert_eq!(saved.part_bytes, None);
    saved.plan
}

fn read(bytes: &[u8]) -> Result<Plan, FileError> {
    plan::read(bytes, Path::new("plan.json")).map(whole)
}

#[test]
fn the_sample_of_version_1_still_loads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/plan-v1.json");
    assert_eq!(load(&path).map(whole).expect("it was written by version 1"), sample());
    // And is what is written today, but for the line's end that an editor may add.
    let text = fs::read_to_string(path).expect("it was just read");
    assert_eq!(text.trim_end(), plan::write(&sample(), None));
}

#[test]
fn a_saved_plan_comes_back() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.json");
    for plan in [sample(), Plan::default(), other_sample()] {
        save(&path, &plan).expect("the folder can be written");
        assert_eq!(load(&path).map(whole).expect("it was just saved"), plan);
    }
    let names: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_plan_written_with_other_white_space_is_the_same() {
    let value: serde_json::Value =
        serde_json::from_str(&plan::write(&sample(), None)).expect("what we write is JSON");
    let pretty = serde_json::to_string_pretty(&value).expect("what was read can be written");
    assert_eq!(read(pretty.as_bytes()).expect("white space has no meaning"), sample());
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = plan::write(&sample(), None).into_bytes();
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Err(FileError::Truncated { size_bytes, .. }) => assert_eq!(size_bytes, length as u64),
            other => panic!("{length} of {} bytes: {other:?}", bytes.len()),
        }
    }
    assert!(bytes.len() > 300, "the sample is too small to show much");
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = plan::write(&sample(), None).into_bytes();
    let mut checksums = 0;
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match read(&damaged) {
            Err(FileError::Checksum { .. }) => checksums += 1,
            Err(_) => {}
            Ok(plan) => panic!("bit {bit}: {plan:?}"),
        }
    }
    assert!(checksums > 100, "only {checksums} reached the checksum");
}

#[test]
fn each_fault_has_its_own_error() {
    let text = plan::write(&sample(), None);
    let check = |bytes: &[u8], expect: fn(&FileError) -> bool, words: &str| {
        let error = read(bytes).expect_err("it is faulty");
        assert!(expect(&error), "{error:?}");
        let message = error.to_string();
        assert!(message.contains("plan.json") && message.contains(words), "{message}");
        assert!(!message.ends_with('.') && !message.contains('\n'), "{message}");
    };
    let foreign = |error: &FileError| matches!(error, FileError::Foreign { .. });
    check(b"", |e| matches!(e, FileError::Truncated { .. }), "0 bytes");
    check(b"hello", foreign, "not a plan file");
    check(b"\x7fELF\x00\x01", foreign, "not a plan file");
    check(b"{}", foreign, "not a plan file");
    check(b"[1, 2", foreign, "not a plan file");
    check(b"{\"format\":\"smartswap-trace\",\"version\":1}", foreign, "not a plan file");
    check(&[b'['; 100_000], foreign, "not a plan file");
    let newer = text.replacen("\"version\":1", "\"version\":3", 1);
    check(newer.as_bytes(), |e| matches!(e, FileError::Newer { .. }), "version 3");
    let malformed = |error: &FileError| matches!(error, FileError::Malformed { .. });
    check(text.replacen("op_count", "up_count", 1).as_bytes(), malformed, "up_count");
    check(text.replacen("swap_out", "swap_up", 1).as_bytes(), malformed, "swap_up");
    check(text.replacen("}}", "},}", 1).as_bytes(), malformed, "damaged");
    let checksum = |error: &FileError| matches!(error, FileError::Checksum { .. });
    check(text.replacen("\"op_count\":5", "\"op_count\":6", 1).as_bytes(), checksum, "checksum");
}

#[test]
fn a_plan_for_a_step_in_parts_says_so_and_is_of_version_2() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.json");
    let saved = SavedPlan { plan: sample(), part_bytes: NonZeroU64::new(3 << 30) };
    save_in_parts(&path, &saved.plan, saved.part_bytes).expect("the folder can be written");
    assert_eq!(load(&path).expect("it was just saved"), saved);
    let text = fs::read_to_string(&path).expect("it was just saved");
    let body = "\"op_count\":5,\"part_bytes\":3221225472,\"blocks\":";
    assert!(text.contains("\"version\":2,") && text.contains(body), "{text}");
    let refused = |text: &str| match plan::read(text.as_bytes(), &path) {
        Err(error) => error.to_string(),
        Ok(saved) => panic!("{saved:?}"),
    };
    // A version that fits the body is asked for, either way.
    let version = |text: &str, from: &str, to: &str| refused(&text.replacen(from, to, 1));
    assert!(
        version(&text, "\"version\":2", "\"version\":1").contains("its version is 1: 2 is for")
    );
    let whole = plan::write(&sample(), None);
    assert!(
        version(&whole, "\"version\":1", "\"version\":2").contains("its version is 2: 2 is for")
    );
    assert!(version(&whole, "\"version\":1", "\"version\":3").contains("reads up to 2"));
    let none = refused(&text.replacen("3221225472", "0", 1));
    assert!(none.contains("nonzero") && !none.contains('\n'), "{none}");
    assert!(refused(&text.replacen("3221225472", "3221225473", 1)).contains("checksum"));
}

#[test]
fn what_a_file_says_does_not_break_the_line_of_its_error() {
    let text = plan::write(&sample(), None);
    let one_line = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "the sample has no {from}");
        let error = read(changed.as_bytes()).expect_err("it is damaged").to_string();
        assert!(!error.contains(char::is_control) && error.len() < 600, "{error}");
        error
    };
    assert!(one_line("\"persistent\"", "\"persist\\nent\"").contains("persist\\nent"));
    one_line("\"crc32\":\"", "\"crc32\":\"\\u001b[2J\\n");
    one_line("\"persistent\"", &format!("\"{}\"", "long".repeat(1 << 20)));
}

#[test]
fn plans_that_contradict_themselves_are_not_saved_and_not_loaded() {
    let check = |change: fn(&mut Plan), expect: PlanFault| {
        let mut plan = sample();
        change(&mut plan);
        let text = plan::write(&plan, None);
        let fault = |result: Result<(), FileError>| match result {
            Err(FileError::Plan { fault, .. }) => fault,
            other => panic!("{plan:?}: {other:?}"),
        };
        assert_eq!(fault(read(text.as_bytes()).map(|_| ())), expect);
        // Nothing is even created.
        assert_eq!(fault(save(Path::new("/nowhere/plan.json"), &plan)), expect);
    };
    check(|plan| plan.actions.swap(0, 1), PlanFault::Order { position: 1 });
    check(|plan| plan.actions[2].phase = Phase::Begin, PlanFault::Order { position: 2 });
    let op = |op| PlanFault::Op { position: 4, op, op_count: 5 };
    check(|plan| plan.actions[4].op = OpIndex(5), op(5));
    check(|plan| plan.actions[4].due = OpIndex(u32::MAX), op(u32::MAX));
    check(
        |plan| plan.actions[0].block = BlockIndex(1),
        PlanFault::UnknownBlock { position: 0, block: 1 },
    );
    check(|plan| plan.blocks.swap(0, 1), PlanFault::Block { position: 1 });
    check(|plan| plan.blocks[1].index = BlockIndex(0), PlanFault::Block { position: 1 });
    check(|plan| plan.blocks[2].size_bytes = 0, PlanFault::Block { position: 2 });
    check(|plan| plan.blocks[0].origin = Origin::Op(OpIndex(5)), PlanFault::Block { position: 0 });
}

#[test]
fn files_that_cannot_be_are_told_from_files_that_are_wrong() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    for path in [folder.path().join("none"), folder.path().to_owned()] {
        let error = load(&path).expect_err("there is no file");
        assert!(matches!(error, FileError::Io { doing: "read", .. }), "{error:?}");
    }
    for path in [folder.path().join("none/plan.json"), folder.path().to_owned()] {
        let error = save(&path, &sample()).expect_err("there can be no file");
        assert!(matches!(error, FileError::Save(_)), "{error:?}");
    }
    let left = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 0, "something was left half-written");
}

#[test]
fn only_so_much_of_a_file_is_read() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("plan.json");
    // Sparse: it takes no room.
    let file = fs::File::create(&path).expect("the folder can be written");
    file.set_len(PLAN_BYTES_MAX + 1).expect("a sparse file");
    let error = load(&path).expect_err("it is too large");
    assert!(matches!(error, FileError::TooLarge { limit_bytes: PLAN_BYTES_MAX, .. }), "{error:?}");
}

fn plans() -> impl Strategy<Value = Plan> {
    let origins = prop_oneof![
        Just(Origin::Persistent),
        (0..50_u32).prop_map(|op| Origin::Op(OpIndex(op))),
        (0..=50_u32).prop_map(|op| Origin::Before(OpIndex(op))),
    ];
    let kinds = prop_oneof![
        Just(ActionKind::SwapOut),
        Just(ActionKind::SwapIn),
        Just(ActionKind::Discard),
        Just(ActionKind::Replay),
    ];
    let phases = prop_oneof![Just(Phase::Begin), Just(Phase::End)];
    let blocks = prop::collection::btree_map(any::<u32>(), (1..u64::MAX, origins), 1..20);
    let actions = prop::collection::vec(
        (0..50_u32, phases, kinds, any::<prop::sample::Index>(), 0..50_u32),
        0..60,
    );
    (any::<u64>(), blocks, actions).prop_map(|(signature, blocks, actions)| {
        let blocks: Vec<PlanBlock> = blocks
            .into_iter()
            .map(|(index, (size_bytes, origin))| PlanBlock {
                index: BlockIndex(index),
                size_bytes,
                origin,
            })
            .collect();
        let mut actions: Vec<Action> = actions
            .into_iter()
            .map(|(op, phase, kind, block, due)| {
                action(op, phase, kind, blocks[block.index(blocks.len())].index.0, due)
            })
            .collect();
        actions.sort_by_key(|action| (action.op, action.phase));
        Plan { signature: Signature(signature), op_count: 50, blocks, actions }
    })
}

proptest! {
    #[test]
    fn every_plan_comes_back(plan in plans()) {
        prop_assert_eq!(read(plan::write(&plan, None).as_bytes()).expect("it is a plan"), plan);
    }

    #[test]
    fn no_bytes_make_the_readers_panic(
        start in 0..3_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
    ) {
        // From nothing, or inside a real file.
        let mut file = [String::new(), plan::write(&sample(), None), write_trace(&trace_sample())]
            [start].clone().into_bytes();
        let from = at.index(file.len() + 1);
        file.splice(from..(from + bytes.len()).min(file.len()), bytes);
        let is_plan = read(&file).is_ok();
        let config = RecordedConfig::default();
        let is_trace = read_trace(&file, Path::new("trace.json"), &config).is_ok();
        prop_assert!(!(is_plan && is_trace));
    }
}

/// A trace with every kind of everything.
fn trace_sample() -> Trace {
    let op = |name: &str, depth, device_us| TraceOp {
        name: name.to_owned(),
        depth,
        device_us,
        host_us: device_us / 2.0,
        host_waits: name == "add_",
        replayable: depth == 0,
        at_any_size: name == "add_",
        outdated_by: (device_us > 0.1).then_some(OpIndex(2)),
    };
    let block = |origin, name: &str| TraceBlock {
        size_bytes: 4096,
        origin,
        name: name.to_owned(),
        held: false,
        nth: u32::from(name.is_empty()),
    };
    let touch = |block, mode| TraceEvent::Touch(BlockIndex(block), mode);
    Trace {
        signature: Signature(u64::MAX),
        ops: vec![op("mm \"1\"\n", 0, 0.1 + 0.2), op("inner", 1, 0.0), op("add_", 0, 1e-9)],
        blocks: vec![
            block(Origin::Persistent, "weight"),
            block(Origin::Op(OpIndex(0)), ""),
            block(Origin::Op(OpIndex(1)), "größe"),
            block(Origin::Before(OpIndex(2)), "x"),
        ],
        events: vec![
            TraceEvent::Begin(OpIndex(0)),
            touch(0, AccessMode::Read),
            TraceEvent::Allocate(BlockIndex(1)),
            TraceEvent::Begin(OpIndex(1)),
            TraceEvent::Allocate(BlockIndex(2)),
            touch(2, AccessMode::Write),
            TraceEvent::Free(BlockIndex(2)),
            TraceEvent::End(OpIndex(1)),
            touch(1, AccessMode::Write),
            TraceEvent::End(OpIndex(0)),
            TraceEvent::Segments(1 << 40),
            TraceEvent::Allocate(BlockIndex(3)),
            TraceEvent::Begin(OpIndex(2)),
            touch(1, AccessMode::ReadWrite),
            TraceEvent::End(OpIndex(2)),
            TraceEvent::Free(BlockIndex(0)),
        ],
        segment_bytes: 1 << 20,
        step_us: 1.0 / 3.0,
        host_costs: HostCosts { replay_us: 1.0 / 7.0, move_us: 8.5 },
    }
}

#[test]
fn a_saved_trace_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("trace.json");
    save_trace(&path, &trace_sample()).expect("the folder can be written");
    assert_eq!(
        load_trace(&path, &RecordedConfig::default()).expect("it was just saved"),
        trace_sample()
    );
}

#[test]
fn a_file_holds_several_steps_of_either_kind() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("steps.json");
    let config = RecordedConfig::default();
    let (one, other) = (trace_sample(), Trace { step_us: 2.0, ..trace_sample() });
    save_steps(&path, [&one, &other]).expect("the folder can be written");
    assert_eq!(load_steps(&path, &config).expect("it was just saved"), [one.clone(), other]);
    let two = load_trace(&path, &config).expect_err("there are two");
    assert!(matches!(two, FileError::Several { steps: 2, .. }), "{two}");
    // As `cat` makes them, with whatever white space, also of what frameworks record.
    let framework = r#"{"ops": [{"name": "aten::mm", "depth": 0, "us": 1.0, "reads": [],
        "writes": [], "outputs": []}], "tensors": []}"#;
    let text = format!("{}\n\n{framework} {}", write_trace(&one), write_trace(&one));
    let steps = read_steps(text.as_bytes(), &path, &config).expect("each is one");
    assert_eq!((steps.len(), &steps[0], &steps[2]), (3, &one, &one));
    // What is wrong with any is wrong with the file.
    let cut = read_steps(&text.as_bytes()[..text.len() - 9], &path, &config);
    assert!(matches!(cut, Err(FileError::Truncated { .. })), "{cut:?}");
    let more = read_steps(format!("{text} more").as_bytes(), &path, &config);
    assert!(matches!(more, Err(FileError::Foreign { .. })), "{more:?}");
}

#[test]
fn a_trace_file_speaks_the_interchange_form() {
    let text = write_trace(&trace_sample());
    let value: serde_json::Value = serde_json::from_str(&text).expect("what we write is JSON");
    let numbers = |value: &serde_json::Value| -> Vec<i64> {
        value.as_array().into_iter().flatten().filter_map(serde_json::Value::as_i64).collect()
    };
    let op = |index: usize| {
        let op = &value["ops"][index];
        [numbers(&op["reads"]), numbers(&op["writes"]), numbers(&op["outputs"])]
    };
    assert_eq!(op(0), [vec![0], vec![1], vec![1]]);
    assert_eq!(op(1), [vec![], vec![2], vec![]], "scratch is not an output");
    assert_eq!(op(2), [vec![1], vec![1], vec![]]);
    let lives: Vec<(i64, i64)> = (0..4)
        .map(|index| &value["tensors"][index])
        .filter_map(|tensor| Some((tensor["alloc"].as_i64()?, tensor["free"].as_i64()?)))
        .collect();
    assert_eq!(lives, [(-1, 3), (1, -1), (2, 2), (2, -1)]);
    assert_eq!(value["tensors"][2]["bytes"], 4096);
    assert_eq!(value["ops"][1]["depth"], 1);
}

#[test]
fn damaged_traces_are_refused() {
    let text = write_trace(&trace_sample());
    let read = |text: &str| {
        read_trace(text.as_bytes(), Path::new("trace.json"), &RecordedConfig::default())
    };
    for length in 0..text.len() {
        let cut = read_trace(
            &text.as_bytes()[..length],
            Path::new("trace.json"),
            &RecordedConfig::default(),
        );
        assert!(matches!(cut, Err(FileError::Truncated { .. })), "{length}: {cut:?}");
    }
    let malformed = |from: &str, to: &str| {
        assert_ne!(text.replacen(from, to, 1), text, "the sample has no {from}");
        let result = read(&text.replacen(from, to, 1));
        assert!(matches!(result, Err(FileError::Malformed { .. })), "{from}: {result:?}");
    };
    malformed("\"B0\"", "\"Z0\"");
    malformed("\"B0\"", "\"\"");
    malformed("\"B0\"", "\"B+0\"");
    malformed("\"B0\"", "\"B\"");
    malformed("\"B0\"", "\"B4294967296\"");
    malformed("\"B0\"", "\"ü0\"");
    malformed("\"tensors\"", "\"sensors\"");
    malformed("ffffffffffffffff", "FFFFFFFFFFFFFFFF");
    // What parses must also make sense.
    let fault = |from: &str, to: &str| {
        assert_ne!(text.replacen(from, to, 1), text, "the sample has no {from}");
        match read(&text.replacen(from, to, 1)) {
            Err(FileError::Trace { fault, .. }) => fault,
            other => panic!("{from}: {other:?}"),
        }
    };
    assert_eq!(fault("1e-9", "-1e-9"), TraceFault::Op(OpIndex(2)));
    assert_eq!(fault("1e-9", "1e300"), TraceFault::Op(OpIndex(2)));
    assert_eq!(fault("\"step_us\":0.33", "\"step_us\":-0.33"), TraceFault::StepTime);
    let result = read(&text.replacen("\"R0\"", "\"R9\"", 1));
    assert!(matches!(result, Err(FileError::Trace { .. })), "{result:?}");
    let newer = text.replacen("\"version\":1", "\"version\":7", 1);
    assert!(matches!(read(&newer), Err(FileError::Newer { found: 7, supported: 1, .. })));
    let plan = read(&plan::write(&sample(), None));
    assert!(matches!(plan, Err(FileError::Foreign { expected: "trace", .. })), "{plan:?}");
}

#[test]
fn the_documented_example_is_the_sample() {
    let page = include_str!("../../../../docs/plan-format.md");
    let example = page.split("```json").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(read(example.expect("the page has an example").as_bytes()).ok(), Some(sample()));
}

#[test]
fn the_document_names_the_operators_that_can_run_again() {
    let page = include_str!("../../../../docs/plan-format.md");
    let listed = page.split("```text").nth(1).and_then(|rest| rest.split("```").next());
    let listed: Vec<&str> = listed.expect("the page has a list").split_whitespace().collect();
    let source = include_str!("../generate/deterministic.rs");
    let names = source.split("DETERMINISTIC: ").nth(1).and_then(|rest| rest.split("];").next());
    let names: Vec<&str> = names.expect("there is a table").split('"').skip(1).step_by(2).collect();
    assert!(names.len() > 50 && names.iter().all(|name| !name.contains(',')), "{names:?}");
    assert_eq!(listed, names);
}
