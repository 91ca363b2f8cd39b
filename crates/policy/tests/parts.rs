//! Promise: a step in parts is the recorded one, but that operators over lists of tensors run part
//! by part, as training calls them under a cap.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::Path;

use policy::synthetic::{Numbers, TraceBuilder};
use policy::{
    BlockIndex, GenerateConfig, InParts, Link, Machine, OpIndex, Origin, Plan, RecordedConfig,
    Trace, TraceEvent, check_trace, generate, in_parts, load_trace, part_bytes, simulate,
};

const CASES: u64 = 2_000;
const MIB: u64 = 1 << 20;
const WHOLE: [u32; 0] = [];

/// How an operator takes its lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// It changes all of them.
    Fused,
    /// It reads all but the last one, and changes that.
    InPlace,
    /// It reads one.
    Norm,
}

/// Names of operators over lists, with the numbers of lists that each may have.
const OPERATORS: [(&str, Kind, &[usize]); 9] = [
    ("aten::_fused_adamw_", Kind::Fused, &[4, 5]),
    ("aten::_fused_adam_.tensor_lr", Kind::Fused, &[4, 5]),
    ("aten::_fused_sgd_", Kind::Fused, &[2, 3]),
    ("aten::_fused_adagrad_", Kind::Fused, &[3]),
    ("aten::_foreach_addcdiv_.ScalarList", Kind::InPlace, &[1, 2, 3]),
    ("aten::_foreach_mul_.Scalar", Kind::InPlace, &[1]),
    ("aten::_foreach_copy_", Kind::InPlace, &[2]),
    ("aten::_amp_foreach_non_finite_check_and_unscale_", Kind::InPlace, &[1]),
    ("aten::_foreach_norm.Scalar", Kind::Norm, &[1]),
];

/// A step with operators over lists, and for each op the lists that it works on.
struct Listed {
    trace: Trace,
    lists: BTreeMap<OpIndex, Vec<Vec<BlockIndex>>>,
}

/// A step of a few operators over random lists among others that nest, allocate and free.
fn listed(seed: u64) -> Listed {
    let mut numbers = Numbers::new(seed);
    let mut builder = TraceBuilder::new();
    // The lengths are odd and the sizes differ, so that no other lists fit.
    let length = 3 + 2 * numbers.below(5) as usize;
    let mut sizes: Vec<u64> = (0..length).map(|_| 2 * MIB * (1 + numbers.below(20))).collect();
    sizes[0] = 64 * MIB;
    let pool: Vec<Vec<BlockIndex>> = (0..5)
        .map(|list| {
            let name = |place| format!("state{list}.{place}");
            let blocks = sizes.iter().enumerate();
            blocks.map(|(place, &bytes)| builder.persistent(&name(place), bytes)).collect()
        })
        .collect();
    builder.segments(4 * MIB);
    let mut lists = BTreeMap::new();
    for _ in 0..2 + numbers.below(6) {
        if numbers.chance(50) {
            other_ops(&mut builder, &mut numbers, pool[0][0]);
        }
        let (name, kind, counts) = OPERATORS[numbers.below(9) as usize];
        let count = counts[numbers.below(counts.len() as u64) as usize];
        let op = builder.begin(name, 1.0 + numbers.below(500) as f64, false);
        for (list, blocks) in pool[..count].iter().enumerate() {
            for &block in blocks {
                match kind {
                    Kind::Fused => builder.update(block),
                    Kind::InPlace if list + 1 == count => builder.update(block),
                    Kind::InPlace | Kind::Norm => builder.read(block),
                }
            }
        }
        builder.end();
        lists.insert(op, pool[..count].to_vec());
    }
    other_ops(&mut builder, &mut numbers, pool[1][0]);
    Listed { trace: builder.finish(), lists }
}

fn other_ops(builder: &mut TraceBuilder, numbers: &mut Numbers, input: BlockIndex) {
    let outer = numbers.chance(50).then(|| builder.allocate("outer", 8 * MIB));
    builder.begin("aten::linear", 90.0, false);
    let inner = builder.allocate("inner", 2 * MIB * (1 + numbers.below(9)));
    builder.compute("aten::mm", 0.0, &[input], inner);
    builder.end();
    builder.free(inner);
    if let Some(outer) = outer {
        builder.free(outer);
    }
}

fn bytes(mebibytes: u64) -> NonZeroU64 {
    NonZeroU64::new(mebibytes * MIB).expect("it is above 0")
}

/// The touches of each op itself, in order.
fn touches(trace: &Trace) -> Vec<Vec<TraceEvent>> {
    let mut touches = vec![Vec::new(); trace.ops.len()];
    let mut open = Vec::new();
    for &event in &trace.events {
        match event {
            TraceEvent::Begin(op) => open.push(op),
            TraceEvent::End(_) => drop(open.pop()),
            TraceEvent::Touch(..) => {
                let op: &OpIndex = open.last().expect("touches are inside ops");
                touches[op.0 as usize].push(event);
            }
            _ => {}
        }
    }
    touches
}

fn block(event: &TraceEvent) -> BlockIndex {
    match *event {
        TraceEvent::Touch(block, _) => block,
        _ => panic!("{event:?} is not a touch"),
    }
}

/// By op in parts: the op as recorded.
fn origins(recorded: &Trace, made: &InParts) -> Vec<u32> {
    let mut origins = Vec::new();
    let mut split = made.split.iter().peekable();
    for op in 0..recorded.ops.len() as u32 {
        let first = OpIndex(origins.len() as u32);
        let count = split.next_if(|split| split.first == first).map_or(1, |split| split.count);
        origins.extend((0..count).map(|_| op));
    }
    assert_eq!(split.next(), None);
    assert_eq!(origins.len(), made.trace.ops.len());
    origins
}

/// Whether joining the parts of each op gives back what was recorded.
fn check_joined(recorded: &Trace, made: &InParts) {
    let origins = origins(recorded, made);
    let trace = &made.trace;
    assert_eq!(check_trace(trace), Ok(()));
    assert_eq!((trace.segment_bytes, trace.step_us), (recorded.segment_bytes, recorded.step_us));
    let mut us = vec![0.0; recorded.ops.len()];
    for (op, &origin) in trace.ops.iter().zip(&origins) {
        let whole = &recorded.ops[origin as usize];
        assert_eq!(
            (&op.name, op.depth, op.replayable),
            (&whole.name, whole.depth, whole.replayable)
        );
        us[origin as usize] += op.device_us;
    }
    for (us, op) in us.iter().zip(&recorded.ops) {
        assert!((us - op.device_us).abs() <= 1e-9 * op.device_us, "{us} of {op:?}");
    }
    let number = |op: OpIndex| {
        OpIndex(origins.get(op.0 as usize).copied().unwrap_or(recorded.ops.len() as u32))
    };
    for (block, whole) in trace.blocks.iter().zip(&recorded.blocks) {
        let origin = match block.origin {
            Origin::Persistent => Origin::Persistent,
            Origin::Op(op) => Origin::Op(number(op)),
            Origin::Before(op) => Origin::Before(number(op)),
        };
        assert_eq!(
            (origin, block.size_bytes, &block.name),
            (whole.origin, whole.size_bytes, &whole.name)
        );
    }
    assert_eq!(trace.blocks.len(), recorded.blocks.len());
    // Between parts of one op nothing happens; all else is as it was, touches of parts apart.
    let parted: BTreeSet<u32> =
        made.split.iter().map(|split| origins[split.first.0 as usize]).collect();
    let plain = |trace: &Trace, number: &dyn Fn(OpIndex) -> OpIndex| {
        let mut events = Vec::new();
        let mut inside = false;
        for &event in &trace.events {
            match event {
                TraceEvent::Begin(op) => {
                    inside = parted.contains(&number(op).0);
                    if events.last() == Some(&TraceEvent::End(number(op))) {
                        events.pop();
                    } else {
                        events.push(TraceEvent::Begin(number(op)));
                    }
                }
                TraceEvent::End(op) => events.push(TraceEvent::End(number(op))),
                TraceEvent::Touch(..) if inside => {}
                other => events.push(other),
            }
        }
        events
    };
    assert_eq!(plain(trace, &number), plain(recorded, &|op| op));
}

/// Whether each split op runs place by place, as many in each part as fit.
fn check_places(listed: &Listed, made: &InParts, part_bytes: u64) {
    let size = |block: &BlockIndex| listed.trace.blocks[block.0 as usize].size_bytes;
    let origins = origins(&listed.trace, made);
    let (whole, parted) = (touches(&listed.trace), touches(&made.trace));
    for split in &made.split {
        let op = OpIndex(origins[split.first.0 as usize]);
        let lists = &listed.lists[&op];
        let places: Vec<u64> = (0..lists[0].len())
            .map(|place| lists.iter().map(|list| size(&list[place])).sum())
            .collect();
        let mut place = 0;
        for part in split.first.0..split.first.0 + split.count {
            let touched: BTreeSet<BlockIndex> = parted[part as usize].iter().map(block).collect();
            let start = place;
            while place < places.len() && touched.contains(&lists[0][place]) {
                assert!(lists.iter().all(|list| touched.contains(&list[place])), "a place is torn");
                place += 1;
            }
            assert!(place > start && touched.len() == (place - start) * lists.len());
            let bytes: u64 = places[start..place].iter().sum();
            assert!(bytes <= part_bytes || place == start + 1);
            let next = places.get(place);
            assert!(next.is_none_or(|next| bytes + next > part_bytes), "one more would have fit");
            let own = whole[op.0 as usize].iter().filter(|event| touched.contains(&block(event)));
            assert_eq!(own.copied().collect::<Vec<_>>(), parted[part as usize]);
        }
        assert_eq!(place, places.len());
    }
}

#[test]
fn parts_are_places_in_order_and_all_else_is_as_it_was() {
    let (mut split, mut whole, mut nested) = (0, 0, 0);
    for seed in 0..CASES {
        let listed = listed(seed);
        let limit = bytes(16 + 32 * (seed % 16));
        let total = |lists: &Vec<Vec<BlockIndex>>| -> u64 {
            let blocks = lists.iter().flatten();
            blocks.map(|block| listed.trace.blocks[block.0 as usize].size_bytes).sum()
        };
        let large =
            listed.lists.values().filter(|lists| total(lists) > limit.get() * 5 / 4).count();
        let Some(made) = in_parts(&listed.trace, limit) else {
            assert_eq!(large, 0, "seed {seed}");
            whole += 1;
            continue;
        };
        assert_eq!(made.split.len(), large, "seed {seed}");
        check_joined(&listed.trace, &made);
        check_places(&listed, &made, limit.get());
        assert_ne!(made.trace.signature, listed.trace.signature);
        // What is in parts stays so, also where a part may have more.
        for again in [limit, limit.saturating_add(u64::from(seed as u32) * MIB)] {
            assert_eq!(in_parts(&made.trace, again), None, "seed {seed}");
        }
        split += 1;
        nested += u32::from(made.trace.ops.iter().any(|op| op.depth > 0));
    }
    assert!(split > CASES / 2 && whole > 20 && nested > 500, "{split} {whole} {nested}");
}

/// A step of one op on `count` lists of `length` tensors of 64 MiB.
fn uniform(name: &str, count: usize, length: usize) -> Trace {
    let mut builder = TraceBuilder::new();
    let blocks: Vec<BlockIndex> =
        (0..count * length).map(|at| builder.persistent(&format!("t{at}"), 64 * MIB)).collect();
    builder.begin(name, 1000.0, false);
    blocks.iter().for_each(|&block| builder.update(block));
    builder.end();
    builder.finish()
}

fn counts(trace: &Trace, part_mebibytes: u64) -> Vec<u32> {
    let made = in_parts(trace, bytes(part_mebibytes));
    made.map_or(vec![], |made| made.split.iter().map(|split| split.count).collect())
}

#[test]
fn lists_of_like_tensors_are_told_by_the_operator() {
    // One place of four lists has 256 MiB, of five 320.
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 4, 8), 256), [8]);
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 4, 8), 512), [4]);
    assert_eq!(counts(&uniform("aten::_fused_adam_", 5, 7), 320), [7]);
    assert_eq!(counts(&uniform("aten::_fused_sgd_", 3, 8), 192), [8]);
    assert_eq!(counts(&uniform("aten::_fused_sgd_", 2, 7), 128), [7]);
    assert_eq!(counts(&uniform("aten::_foreach_mul_.Scalar", 1, 8), 64), [8]);
    // A place is never torn, and a quarter more than a part stays whole.
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 4, 8), 1), [8]);
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 4, 5), 1024), WHOLE);
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 4, 5), 1023), [2]);
}

#[test]
fn what_may_be_no_list_stays_whole() {
    for name in [
        "aten::_fused_rms_norm",
        "aten::cat",
        "_fused_adamw_",
        "mine::_fused_adamw_",
        "aten::_fused_adamw",
        "aten::_foreach",
        "",
    ] {
        assert_eq!(counts(&uniform(name, 4, 8), 64), WHOLE, "{name}");
    }
    // Seven tensors are not four lists, nor five.
    assert_eq!(counts(&uniform("aten::_fused_adamw_", 1, 7), 64), WHOLE);
    let changed = |change: fn(&mut Trace)| {
        let mut trace = uniform("aten::_fused_adamw_", 4, 8);
        change(&mut trace);
        counts(&trace, 64)
    };
    assert_eq!(changed(|_| ()), [8]);
    assert_eq!(changed(|trace| trace.blocks[9].size_bytes += 1), WHOLE);
    assert_eq!(changed(|trace| trace.ops[0].replayable = true), WHOLE);
    assert_eq!(changed(|trace| trace.events.insert(5, TraceEvent::Segments(4))), WHOLE);
    assert_eq!(changed(|trace| trace.events.insert(5, TraceEvent::Free(BlockIndex(0)))), WHOLE);
    // Inside another op a split would not help: the op around it has all in use.
    let mut builder = TraceBuilder::new();
    let blocks: Vec<BlockIndex> =
        (0..8).map(|at| builder.persistent(&format!("t{at}"), 64 * MIB)).collect();
    builder.begin("optimizer", 10.0, false);
    builder.begin("aten::_foreach_mul_.Scalar", 0.0, false);
    blocks.iter().for_each(|&block| builder.update(block));
    builder.end();
    builder.end();
    assert_eq!(counts(&builder.finish(), 64), WHOLE);
    assert_eq!(in_parts(&Trace::default(), bytes(1)), None);
}

fn machine(limit_bytes: u64) -> Machine {
    let (out_bytes_per_us, in_bytes_per_us, both_bytes_per_us) = (50_000.0, 50_000.0, 40_000.0);
    let link = Link { out_bytes_per_us, in_bytes_per_us, both_bytes_per_us };
    Machine { limit_bytes, host_limit_bytes: u64::MAX / 8, link, copy_submit_us: 8.0 }
}

#[test]
fn a_budget_below_what_the_optimizer_touches_is_reached() {
    let config = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let gpt = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gpt12k.json.gz");
    let recorded = load_trace(&gpt, &RecordedConfig::default()).expect("it was recorded");
    for (trace, percents) in [
        (uniform("aten::_fused_adamw_", 4, 32), [10, 25, 50]),
        (uniform("aten::_fused_sgd_", 3, 64), [8, 30, 60]),
        (recorded, [20, 40, 60]),
    ] {
        let peak = simulate(&trace, &Plan::default(), &machine(1 << 60)).resident_bytes_peak;
        for percent in percents {
            let machine = machine(peak * percent / 100);
            assert!(generate(&trace, &machine, &config, &[]).infeasible.is_some());
            let parted =
                in_parts(&trace, part_bytes(machine.limit_bytes)).expect("it is large").trace;
            let made = generate(&parted, &machine, &config, &[]);
            assert_eq!(made.infeasible, None, "{percent} %");
            let ran = simulate(&parted, &made.plan, &machine);
            assert!(ran.shortfall.is_none() && ran.held_bytes_peak <= machine.limit_bytes);
            assert_eq!((ran.misses, ran.rescues), (0, 0), "{percent} %");
            // Alone it takes as long and as much as before.
            let free = simulate(&parted, &Plan::default(), &self::machine(1 << 60));
            assert_eq!(free.resident_bytes_peak, peak);
            let us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
            assert!((free.step_us - us).abs() < 1e-6 * us);
        }
    }
}

#[test]
fn a_part_is_as_large_as_where_training_runs() {
    let chunks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/smartswap/chunks.py");
    let chunks = std::fs::read_to_string(chunks).expect("the package is beside us");
    let divisor = chunks.lines().find_map(|line| line.strip_prefix("CAP_DIVISOR = "));
    let divisor: u64 = divisor.expect("it is set there").parse().expect("a number");
    assert_eq!(part_bytes(divisor * 1_000_003).get(), 1_000_003);
    assert_eq!((part_bytes(0).get(), part_bytes(divisor - 1).get()), (1, 1));
}

/// The numbers of operators change, also where one tells of another.
#[test]
fn what_a_change_of_something_small_puts_out_of_date_is_known_in_parts() {
    let mut builder = TraceBuilder::new();
    let lists: Vec<Vec<BlockIndex>> =
        (0..4).map(|_| (0..3).map(|_| builder.persistent("state", 64 * MIB)).collect()).collect();
    let norm = builder.begin("norm", 1.0, true);
    let made = builder.allocate("made", MIB);
    builder.write(made);
    builder.end();
    for _ in 0..2 {
        builder.begin("aten::_fused_adamw_", 10.0, false);
        lists.iter().flatten().for_each(|&block| builder.update(block));
        builder.end();
    }
    builder.free(made);
    let mut trace = builder.finish();
    trace.ops[norm.0 as usize].outdated_by = Some(OpIndex(2));
    let step = in_parts(&trace, NonZeroU64::new(256 * MIB).expect("above 0")).expect("in parts");
    let behind = step.trace.ops[norm.0 as usize].outdated_by;
    assert_eq!((step.trace.ops.len(), behind), (7, Some(OpIndex(4))), "the second update's first");
}
