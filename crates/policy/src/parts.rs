//! Splits the operators over lists of tensors into parts, as training runs them under a cap.
//!
//! A fused optimizer has all weights, gradients and moments in use at once: no plan that sees it
//! as one op goes below that. But each of its results depends on the tensors of one place in its
//! lists alone, and under a cap `python/smartswap/chunks.py` calls it for a few places at a time.
//! So a step that was recorded with more memory is planned for as it will run:
//!
//! ```text
//!   recorded   w0 w1 w2 w3  g0 g1 g2 g3  m0 m1 m2 m3     one op on three lists
//!   in parts   w0 w1 g0 g1 m0 m1 | w2 w3 g2 g3 m2 m3     two ops
//! ```
//!
//! `docs/plan-format.md` says it for simulators of others.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace, TraceEvent, TraceOp};

/// A part has at most this part of the memory limit, as `CAP_DIVISOR` has it where training runs.
const LIMIT_DIVISOR: u64 = 16;
/// Updates wait in slices of this part of the limit, as `_CAP_DIVISOR` of
/// `python/smartswap/deferred.py` has it.
const SLICE_DIVISOR: u64 = 256;
/// An op stays whole up to a quarter more than a part. Blocks are larger than their tensors by up
/// to that, so that what was recorded in parts stays as it is.
const SLACK_DIVISOR: u64 = 4;

/// A step whose operators over lists run in parts.
#[derive(Clone, Debug, PartialEq)]
pub struct InParts {
    /// The step: blocks and times as recorded, more ops, and a signature of its own.
    pub trace: Trace,
    /// The operators that were split, in order.
    pub split: Vec<SplitOp>,
}

/// An operator that was split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitOp {
    /// Its first part in the step that runs in parts; the others follow.
    pub first: OpIndex,
    /// How many there are, at least 2.
    pub count: u32,
}

/// The most bytes of tensors that training hands to one call of an operator over lists, under a
/// memory limit in bytes.
///
/// # Examples
/// ```
/// assert_eq!(policy::part_bytes(24 << 30).get(), 1536 << 20);
/// ```
pub fn part_bytes(limit_bytes: u64) -> NonZeroU64 {
    NonZeroU64::new(limit_bytes / LIMIT_DIVISOR).unwrap_or(NonZeroU64::MIN)
}

/// The bytes of tensors whose updates wait together, under a memory limit in bytes.
pub(crate) fn slice_bytes(limit_bytes: u64) -> NonZeroU64 {
    NonZeroU64::new(limit_bytes / SLICE_DIVISOR).unwrap_or(NonZeroU64::MIN)
}

/// The step as training runs it where operators over lists of tensors are called for at most
/// `part_bytes` at a time. `None` if it runs as it was recorded.
///
/// Split are outermost operators on several lists, or on one, that do nothing but touch blocks:
/// place by place, as many as fit, at least one. Each part has its share of the time by bytes.
///
/// # Panics
/// If the trace is not well formed, it may.
pub fn in_parts(trace: &Trace, part_bytes: NonZeroU64) -> Option<InParts> {
    let lists: BTreeMap<OpIndex, Lists> = (0..)
        .zip(&trace.events)
        .filter_map(|(event, &begun)| match begun {
            TraceEvent::Begin(op) => Some((op, Lists::of(trace, op, event, part_bytes.get())?)),
            _ => None,
        })
        .collect();
    if lists.is_empty() {
        return None;
    }
    let mut writer = Writer {
        lists,
        numbers: Vec::with_capacity(trace.ops.len()),
        split: Vec::new(),
        trace: Trace {
            signature: trace.signature,
            segment_bytes: trace.segment_bytes,
            step_us: trace.step_us,
            host_costs: trace.host_costs,
            ..Trace::default()
        },
    };
    writer.write(trace);
    Some(InParts { trace: writer.trace, split: writer.split })
}

/// One operator that is to be split.
struct Lists {
    touch_count: usize,
    parts: Vec<Part>,
}

struct Part {
    bytes: u64,
    touches: Vec<TraceEvent>,
}

impl Lists {
    /// `None` where the operator that begins with an event stays as it is.
    fn of(trace: &Trace, op: OpIndex, begin: usize, part_bytes: u64) -> Option<Lists> {
        let record = &trace.ops[op.0 as usize];
        if record.depth > 0 || record.replayable || !is_over_lists(&record.name) {
            return None;
        }
        let behind = &trace.events[begin + 1..];
        let is_touch = |event: &TraceEvent| matches!(event, TraceEvent::Touch(..));
        let touches = &behind[..behind.iter().position(|event| !is_touch(event))?];
        if behind[touches.len()] != TraceEvent::End(op) {
            return None;
        }
        let (blocks, mutated) = blocks(touches);
        let size_bytes = |block: &BlockIndex| trace.blocks[block.0 as usize].size_bytes;
        let sizes: Vec<u64> = blocks.iter().map(size_bytes).collect();
        let total_bytes: u64 = sizes.iter().sum();
        if total_bytes <= part_bytes.saturating_add(part_bytes / SLACK_DIVISOR) {
            return None;
        }
        let length = length(&record.name, &sizes, mutated)?;
        let places = sizes[..length].iter().map(|bytes| bytes * (sizes.len() / length) as u64);
        let (part_of_place, mut parts) = deal(places, part_bytes);
        let blocks = blocks.into_iter().enumerate();
        let part_of: BTreeMap<BlockIndex, usize> =
            blocks.map(|(at, block)| (block, part_of_place[at % length])).collect();
        for &touch in touches {
            if let TraceEvent::Touch(block, _) = touch {
                parts[part_of[&block]].touches.push(touch);
            }
        }
        Some(Lists { touch_count: touches.len(), parts })
    }
}

/// Whether an operator of PyTorch works on lists of tensors, place by place.
fn is_over_lists(name: &str) -> bool {
    let plain = plain(name);
    plain.starts_with("_foreach_")
        || plain == "_amp_foreach_non_finite_check_and_unscale_"
        || !fused_lists(plain).is_empty()
}

/// A name without namespace and overload; empty for names of others.
fn plain(name: &str) -> &str {
    let own = name.strip_prefix("aten::").unwrap_or_default();
    own.split('.').next().unwrap_or_default()
}

/// On how many lists a fused optimizer works, the usual number first; none for other operators.
fn fused_lists(plain: &str) -> &'static [usize] {
    match plain {
        // Weights, gradients and two moments; the largest second moments too with amsgrad.
        "_fused_adam_" | "_fused_adamw_" => &[4, 5],
        // Weights, gradients and, mostly, momentum.
        "_fused_sgd_" => &[3, 2],
        "_fused_adagrad_" => &[3],
        _ => &[],
    }
}

/// The blocks that an operator touches, in order of first touch, and how many of them it changes.
fn blocks(touches: &[TraceEvent]) -> (Vec<BlockIndex>, usize) {
    let (mut blocks, mut changed) = (Vec::new(), BTreeMap::new());
    for event in touches {
        if let &TraceEvent::Touch(block, mode) = event {
            let is_changed = changed.entry(block).or_insert_with(|| {
                blocks.push(block);
                false
            });
            *is_changed |= mode != AccessMode::Read;
        }
    }
    (blocks, changed.into_values().filter(|&is_changed| is_changed).count())
}

/// How long the lists are that the sizes of an operator's blocks are made of, one list after the
/// other. `None` if they do not look like lists, or of one place each.
fn length(name: &str, sizes: &[u64], mutated: usize) -> Option<usize> {
    let fused = fused_lists(plain(name));
    // The others change one list at most, and where they change none they read one.
    let own = if mutated == 0 { sizes.len() } else { mutated };
    let lengths = fused.iter().filter(|&lists| sizes.len().is_multiple_of(*lists));
    let mut lengths =
        lengths.map(|lists| sizes.len() / lists).chain(fused.is_empty().then_some(own));
    lengths.find(|&length| {
        let repeats = || sizes[length..].iter().zip(sizes).all(|(one, other)| one == other);
        length > 1 && sizes.len().is_multiple_of(length) && repeats()
    })
}

/// The part of each place, and the parts, without touches: as many places in each as fit, and at
/// least one.
fn deal(places: impl Iterator<Item = u64>, limit_bytes: u64) -> (Vec<usize>, Vec<Part>) {
    let mut parts: Vec<Part> = Vec::new();
    let mut part_of_place = Vec::new();
    for bytes in places {
        match parts.last_mut() {
            Some(part) if part.bytes + bytes <= limit_bytes => part.bytes += bytes,
            _ => parts.push(Part { bytes, touches: Vec::new() }),
        }
        part_of_place.push(parts.len() - 1);
    }
    (part_of_place, parts)
}

/// Writes the step again, with other numbers of ops.
struct Writer {
    lists: BTreeMap<OpIndex, Lists>,
    /// By op as recorded: its number, or that of its first part.
    numbers: Vec<OpIndex>,
    split: Vec<SplitOp>,
    trace: Trace,
}

impl Writer {
    fn write(&mut self, recorded: &Trace) {
        let mut events = recorded.events.iter();
        while let Some(&event) = events.next() {
            match event {
                TraceEvent::Begin(op) => {
                    self.numbers.push(self.next());
                    let record = &recorded.ops[op.0 as usize];
                    if let Some(lists) = self.lists.remove(&op) {
                        // What is skipped is its touches and its end.
                        let _ = events.nth(lists.touch_count);
                        self.write_parts(record, lists);
                    } else {
                        self.begin(record.clone());
                    }
                }
                TraceEvent::End(op) => {
                    self.trace.events.push(TraceEvent::End(self.numbers[op.0 as usize]));
                }
                other => self.trace.events.push(other),
            }
        }
        self.trace.renumber_outdated(&self.numbers);
        self.trace.blocks.clone_from(&recorded.blocks);
        for block in &mut self.trace.blocks {
            let behind = OpIndex(self.trace.ops.len() as u32);
            let number = |op: OpIndex| *self.numbers.get(op.0 as usize).unwrap_or(&behind);
            block.origin = match block.origin {
                Origin::Persistent => Origin::Persistent,
                Origin::Op(op) => Origin::Op(number(op)),
                Origin::Before(op) => Origin::Before(number(op)),
            };
        }
    }

    fn next(&self) -> OpIndex {
        OpIndex(self.trace.ops.len() as u32)
    }

    fn begin(&mut self, record: TraceOp) -> OpIndex {
        let op = self.next();
        self.trace.ops.push(record);
        self.trace.events.push(TraceEvent::Begin(op));
        op
    }

    fn write_parts(&mut self, record: &TraceOp, lists: Lists) {
        self.split.push(SplitOp { first: self.next(), count: lists.parts.len() as u32 });
        let total_bytes: u64 = lists.parts.iter().map(|part| part.bytes).sum();
        for Part { bytes, touches } in lists.parts {
            let share = bytes as f64 / total_bytes as f64;
            let (device_us, host_us) = (record.device_us * share, record.host_us * share);
            let op = self.begin(TraceOp { device_us, host_us, ..record.clone() });
            self.trace.events.extend(touches);
            self.trace.events.push(TraceEvent::End(op));
            self.trace.signature = self.trace.signature.mix(u64::from(op.0)).mix(bytes);
        }
    }
}
