//! Tests of steps that frameworks recorded: what becomes of them, and damage of every kind.

use std::io::Write as _;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::*;
use crate::check::check_trace;

/// A small step: a weight of 8 MiB, an activation of 9 MiB, scratch inside an op, a small tensor.
fn sample() -> Value {
    let op = |name: &str, depth: u32, us: f64, reads: &[u32], writes: &[u32], outputs: &[u32]| {
        json!({"name": name, "depth": depth, "us": us, "reads": reads, "writes": writes,
            "outputs": outputs})
    };
    json!({
        "meta": {"model": "tiny", "step_ms": 1.5},
        "ops": [
            op("aten::mm", 0, 100.0, &[0, 3], &[], &[1]),
            op("aten::empty", 1, 0.0, &[], &[], &[2]),
            op("aten::add_", 0, 50.0, &[0, 1], &[0], &[0]),
        ],
        "tensors": [
            {"bytes": 8 << 20, "alloc": -1, "free": -1},
            {"bytes": 9 << 20, "alloc": 1, "free": 3},
            {"bytes": 16 << 20, "alloc": 2, "free": 2},
            {"bytes": 1000, "alloc": -1, "free": 3},
        ],
    })
}

fn read(json: &[u8]) -> Result<Trace, FileError> {
    read_trace(json, Path::new("step.json"), &RecordedConfig::default())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

/// Loads bytes from a file.
fn load_bytes(bytes: &[u8]) -> Result<Trace, FileError> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("step.json");
    fs::write(&path, bytes).expect("the folder can be written");
    load_trace(&path, &RecordedConfig::default())
}

#[test]
fn a_recorded_step_becomes_the_calls_that_the_engine_would_have_received() {
    let trace = read(sample().to_string().as_bytes()).expect("the sample is sound");
    let touch = |block, mode| TraceEvent::Touch(BlockIndex(block), mode);
    let begin = |op| TraceEvent::Begin(OpIndex(op));
    let end = |op| TraceEvent::End(OpIndex(op));
    let expected = [
        begin(0),
        touch(0, AccessMode::Read),
        // Allocated before the record of the op inside: the outer one did it.
        TraceEvent::Allocate(BlockIndex(1)),
        begin(1),
        // It only allocates, so it leaves the bytes as they are.
        TraceEvent::Allocate(BlockIndex(2)),
        end(1),
        touch(1, AccessMode::Write),
        end(0),
        TraceEvent::Free(BlockIndex(2)),
        begin(2),
        touch(1, AccessMode::Read),
        touch(0, AccessMode::ReadWrite),
        end(2),
        TraceEvent::Free(BlockIndex(1)),
    ];
    assert_eq!(trace.events, expected);
    let blocks: Vec<(u64, Origin)> =
        trace.blocks.iter().map(|block| (block.size_bytes >> 20, block.origin)).collect();
    let op = |op| Origin::Op(OpIndex(op));
    assert_eq!(blocks, [(8, Origin::Persistent), (10, op(0)), (16, op(1))]);
    let names: Vec<&str> = trace.blocks.iter().map(|block| block.name.as_str()).collect();
    assert_eq!(names, ["tensor 0", "tensor 1", "tensor 2"]);
    assert_eq!((trace.step_us, trace.segment_bytes), (1500.0, 2 << 20));
    let times: Vec<f64> = trace.ops.iter().map(|op| op.device_us).collect();
    assert_eq!(times, [100.0, 0.0, 50.0]);
}

#[test]
fn compressed_or_not_a_step_is_the_same_and_can_be_kept_as_ours() {
    let plain = sample().to_string();
    let trace = read(plain.as_bytes()).expect("the sample is sound");
    assert_eq!(load_bytes(plain.as_bytes()).expect("as above"), trace);
    assert_eq!(load_bytes(&gzip(plain.as_bytes())).expect("as above"), trace);
    // Written in our own form it loses nothing, compressed or not.
    let ours = write_trace(&trace);
    assert_eq!(load_bytes(ours.as_bytes()).expect("it was just written"), trace);
    assert_eq!(load_bytes(&gzip(ours.as_bytes())).expect("it was just written"), trace);
}

#[test]
fn other_steps_have_other_signatures() {
    let signature = |change: &dyn Fn(&mut Value)| {
        let mut value = sample();
        change(&mut value);
        read(value.to_string().as_bytes()).expect("still sound").signature
    };
    let same = signature(&|_| {});
    assert_eq!(signature(&|value| value["ops"][0]["us"] = json!(7.0)), same, "time may differ");
    assert_ne!(signature(&|value| value["ops"][0]["name"] = json!("aten::bmm")), same);
    assert_ne!(signature(&|value| value["tensors"][1]["bytes"] = json!(33 << 20)), same);
}

/// The memory of a step by the file's own words, without any of our types: bytes of large tensors
/// in units of 2 MiB.
fn peak_bytes_of(file: &Value) -> u64 {
    let number = |value: &Value| value.as_i64().expect("a number");
    let tensors = file["tensors"].as_array().expect("a list");
    let ops = file["ops"].as_array().expect("a list").len() as i64;
    let bytes = |tensor: &Value| tensor["bytes"].as_u64().expect("a number");
    let large: Vec<&Value> = tensors.iter().filter(|tensor| bytes(tensor) >= 8 << 20).collect();
    let lives = |tensor: &Value, moment: i64| {
        let (alloc, free) = (number(&tensor["alloc"]), number(&tensor["free"]));
        alloc <= moment && (free < 0 || moment <= free)
    };
    let held = |moment: i64| -> u64 {
        let live = large.iter().filter(|tensor| lives(tensor, moment));
        live.map(|tensor| bytes(tensor).next_multiple_of(2 << 20)).sum()
    };
    (0..=ops).map(held).max().expect("there are ops")
}

#[test]
fn a_step_recorded_on_a_gpu_loads_with_the_memory_that_its_file_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gpt12k.json.gz");
    let trace = load_trace(&path, &RecordedConfig::default()).expect("it was recorded");
    let mut text = String::new();
    let packed = fs::read(&path).expect("it was just read");
    GzDecoder::new(&packed[..]).read_to_string(&mut text).expect("as above");
    let file: Value = serde_json::from_str(&text).expect("as above");
    assert_eq!((trace.ops.len(), trace.step_us), (896, 981_250.0));
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut held_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let mut peak_bytes = held_bytes;
    for event in &trace.events {
        match *event {
            TraceEvent::Allocate(block) => held_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => held_bytes -= trace.blocks[block.0 as usize].size_bytes,
            _ => {}
        }
        peak_bytes = peak_bytes.max(held_bytes);
    }
    assert!(peak_bytes > 32 << 30);
    assert_eq!(peak_bytes, peak_bytes_of(&file));
}

#[test]
fn every_contradiction_is_one_line_with_the_file_and_the_place() {
    let check = |place: &str, value: Value, words: &[&str]| {
        let mut file = sample();
        *file.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        let error = read(file.to_string().as_bytes()).expect_err("it contradicts itself");
        let message = error.to_string();
        assert!(message.starts_with("step.json ") && !message.contains('\n'), "{message}");
        for words in words {
            assert!(message.contains(words), "{place}: '{message}' does not say '{words}'");
        }
    };
    check("/ops", json!([]), &["ops", "none"]);
    check("/ops/0/reads", json!([0, 4]), &["ops[0].reads", "no tensor 4"]);
    check("/ops/2/writes", json!([4_000_000_000_u32]), &["ops[2].writes", "no tensor 4000000000"]);
    check("/ops/1/outputs", json!([9]), &["ops[1].outputs", "no tensor 9"]);
    check("/ops/1/outputs", json!([-9]), &["-9", "line 1 column"]);
    check("/ops/0/depth", json!(1), &["ops[0].depth"]);
    check("/ops/1/depth", json!(2), &["ops[1].depth", "more than one"]);
    check("/ops/1/depth", json!(-1), &["-1", "line 1 column"]);
    check("/ops/1/us", json!(-0.5), &["ops[1].us", "-0.5"]);
    check("/ops/1/us", json!(1e300), &["ops[1].us", "not a valid time"]);
    check("/ops/1/us", json!(null), &["line 1 column"]);
    check("/ops/1/name", json!(7), &["line 1 column"]);
    check("/meta/step_ms", json!(-1), &["meta.step_ms", "-1"]);
    check("/meta/step_ms", json!(1e30), &["meta.step_ms"]);
    check("/tensors/1/bytes", json!(u64::MAX), &["tensors[1].bytes", "not a size"]);
    check("/tensors/1/bytes", json!(-8), &["-8", "line 1 column"]);
    check("/tensors/1/alloc", json!(-2), &["tensors[1].alloc", "no op -2"]);
    check("/tensors/1/alloc", json!(i64::MAX), &["tensors[1].alloc", "only 3"]);
    check("/tensors/1/free", json!(4), &["tensors[1].free", "no op 4"]);
    check("/tensors/1/free", json!(i64::MIN), &["tensors[1].free"]);
    check("/tensors/1/free", json!(0), &["tensors[1].free", "before its alloc, 1"]);
    check("/tensors/1", json!({"bytes": 1}), &["alloc", "line 1 column"]);
    check("/tensors", json!(3), &["line 1 column"]);
    // What an op uses lives then, small tensors included.
    check("/ops/0/reads", json!([1]), &["ops[0].reads", "tensor 1", "allocated later, at 1"]);
    check("/ops/0/writes", json!([2]), &["ops[0].writes", "tensor 2", "allocated later, at 2"]);
    check("/ops/2/reads", json!([2]), &["ops[2].reads", "tensor 2", "freed before, at 2"]);
    check("/tensors/3/free", json!(0), &["ops[0].reads", "tensor 3", "freed before, at 0"]);
    check("/tensors/1/alloc", json!(3), &["ops[0].outputs", "tensor 1", "after the op, at 3"]);
    check("/tensors/1/free", json!(1), &["ops[0].outputs", "tensor 1", "inside the op, at 1"]);
}

#[test]
fn files_that_are_no_traces_are_called_so() {
    for bytes in [&b"hello"[..], b"{}", b"[1]", b"{\"ops\": []}", b"\x7fELF", &gzip(b"hello")] {
        let error = load_bytes(bytes).expect_err("it is not a trace");
        assert!(matches!(error, FileError::Foreign { expected: "trace", .. }), "{error:?}");
    }
    let huge = vec![b'['; 1 << 20];
    assert!(load_bytes(&huge).is_err() && load_bytes(&gzip(&huge)).is_err());
}

#[test]
fn every_truncation_is_noticed() {
    let plain = sample().to_string();
    for length in 0..plain.len() {
        let error = read(&plain.as_bytes()[..length]).expect_err("it is cut short");
        // Before the first key there is nothing to know it by.
        if plain[..length].contains("\"ops\"") {
            assert!(matches!(error, FileError::Malformed { .. }), "{length}: {error:?}");
            assert!(error.to_string().contains("line 1 column"), "{error}");
        }
    }
    let packed = gzip(plain.as_bytes());
    for length in 2..packed.len() {
        match load_bytes(&packed[..length]) {
            Err(FileError::Truncated { size_bytes, .. }) => assert_eq!(size_bytes, length as u64),
            other => panic!("{length} of {} bytes: {other:?}", packed.len()),
        }
    }
    let mut damaged = packed.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    assert!(load_bytes(&damaged).is_err(), "its checksum is wrong");
}

#[test]
fn an_op_with_very_many_operands_takes_no_time() {
    let many: Vec<u32> = (0..300_000).collect();
    let tensors = vec![json!({"bytes": 8 << 20, "alloc": -1, "free": -1}); many.len()];
    let mut file = sample();
    file["ops"] = json!([{"name": "all", "depth": 0, "us": 1, "reads": many, "writes": many,
        "outputs": many}]);
    file["tensors"] = json!(tensors);
    let trace = read(file.to_string().as_bytes()).expect("it is sound");
    assert_eq!(trace.events.len(), many.len() + 2);
}

/// Values that no field expects.
fn odd_values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(|number| json!(number)),
        (-3..6_i64).prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        Just(json!(u64::MAX)),
        Just(json!(null)),
        Just(json!("text")),
        prop::collection::vec(-1..5_i64, 0..4).prop_map(|list| json!(list)),
    ]
}

/// What holds for every file that is taken.
fn check_sound(trace: &Trace, file_bytes: usize) -> Result<(), TestCaseError> {
    prop_assert_eq!(check_trace(trace), Ok(()));
    // Each event, op and block comes of something in the file.
    let parts = trace.events.len() + trace.ops.len() + trace.blocks.len();
    prop_assert!(parts <= 4 * file_bytes, "{} parts of {} bytes", parts, file_bytes);
    Ok(())
}

proptest! {
    #[test]
    fn changed_fields_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd_values()), 1..4),
    ) {
        let mut file = sample();
        let mut places = vec!["/meta/step_ms".to_owned()];
        for op in 0..3 {
            let fields = ["name", "depth", "us", "reads", "writes", "outputs"];
            places.extend(fields.map(|field| format!("/ops/{op}/{field}")));
        }
        for tensor in 0..4 {
            let fields = ["bytes", "alloc", "free"];
            places.extend(fields.map(|field| format!("/tensors/{tensor}/{field}")));
        }
        for (place, value) in changes {
            let place: &String = place.get(&places);
            *file.pointer_mut(place).expect("it is there") = value;
        }
        let text = file.to_string();
        match read(text.as_bytes()) {
            Ok(trace) => check_sound(&trace, text.len())?,
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }

    #[test]
    fn changed_bytes_never_panic(
        packed in any::<bool>(),
        at in any::<prop::sample::Index>(),
        removed in 0..40_usize,
        inserted in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = sample().to_string().into_bytes();
        if packed {
            bytes = gzip(&bytes);
        }
        let from = at.index(bytes.len() + 1);
        let to = (from + removed).min(bytes.len());
        bytes.splice(from..to, inserted);
        if let Ok(trace) = load_bytes(&bytes) {
            check_sound(&trace, 2 * sample().to_string().len())?;
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(load_bytes(&bytes).is_err());
        let packed = [&GZIP_MAGIC[..], &bytes].concat();
        prop_assert!(load_bytes(&packed).is_err());
        prop_assert!(load_bytes(&gzip(&bytes)).is_err());
    }
}
