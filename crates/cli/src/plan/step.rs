//! A recorded step as the commands take it: loaded, checked, and with its own peak and time.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU64;
use std::path::Path;

use adaptive::{
    InParts, Machine, OneLine, OpIndex, Plan, RecordedConfig, SplitOp, Trace, in_parts, part_bytes,
    simulate, unlimited_us,
};
use anyhow::bail;
use serde::Serialize;

use crate::report::units;

/// More than any step needs, and small enough to be added to.
pub(crate) const MEMORY_ENDLESS: u64 = u64::MAX / 4;

/// A recorded step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) trace: Trace,
    /// The most bytes that live at once, segments included, when everything stays.
    pub(crate) peak_bytes: u64,
    /// Device time of its ops when everything stays, in microseconds.
    pub(crate) baseline_us: f64,
    /// How it differs from what was recorded, if it does.
    pub(crate) parts: Option<Parts>,
}

/// The operators over lists of tensors that run in parts, as training calls them under a cap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Parts {
    /// The most bytes that one part has, if it has more than one tensor of each list.
    pub(crate) part_bytes: NonZeroU64,
    /// The names of the operators that were split.
    op_names: BTreeSet<String>,
    /// How many operators of these names were, and how many there are instead.
    split_ops: usize,
    parts: u64,
}

impl fmt::Display for Parts {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.op_names.iter().map(String::as_str).collect();
        write!(
            to,
            "{} in {} parts, as training runs under a cap: up to {} at a time, or one tensor of \
             each list",
            names.join(", "),
            self.parts,
            units::bytes(self.part_bytes.get())
        )
    }
}

impl Step {
    /// Loads all steps of a file, at least one.
    ///
    /// # Errors
    /// One line that names the file and the place.
    pub(super) fn open_all(path: &Path) -> anyhow::Result<Vec<Step>> {
        let mut traces = adaptive::load_steps(path, &RecordedConfig::default())?;
        traces.iter_mut().for_each(make_names_plain);
        if traces.iter().any(|trace| trace.ops.is_empty()) {
            bail!("{} cannot be used: it has no operators: record a step", path.display());
        }
        Ok(traces.into_iter().map(Step::new).collect())
    }

    /// A step as it was recorded.
    pub(super) fn new(trace: Trace) -> Step {
        let link =
            adaptive::Link { out_bytes_per_us: 1.0, in_bytes_per_us: 1.0, both_bytes_per_us: 1.0 };
        let endless =
            Machine { limit_bytes: MEMORY_ENDLESS, host_limit_bytes: 0, link, copy_submit_us: 0.0 };
        // Nothing moves, so the link does not matter.
        let free = simulate(&trace, &Plan::default(), &endless);
        let (baseline_us, peak_bytes) = (unlimited_us(&trace), free.resident_bytes_peak);
        Step { trace, peak_bytes, baseline_us, parts: None }
    }

    /// The recorded step as training runs it under a cap, which has no bearing on peak and time.
    pub(crate) fn under(&self, cap_bytes: u64) -> Cow<'_, Step> {
        match cap_bytes < self.peak_bytes {
            true => self.in_parts(part_bytes(cap_bytes)),
            false => Cow::Borrowed(self),
        }
    }

    /// The recorded step with operators over lists in parts of at most this.
    pub(crate) fn in_parts(&self, part_bytes: NonZeroU64) -> Cow<'_, Step> {
        let Some(InParts { trace, split }) = in_parts(&self.trace, part_bytes) else {
            return Cow::Borrowed(self);
        };
        let name = |op: &SplitOp| trace.ops[op.first.0 as usize].name.clone();
        let parts = Parts {
            part_bytes,
            op_names: split.iter().map(name).collect(),
            split_ops: split.len(),
            parts: split.iter().map(|op| u64::from(op.count)).sum(),
        };
        // The same time but for its last digits.
        let (baseline_us, peak_bytes) = (unlimited_us(&trace), self.peak_bytes);
        Cow::Owned(Step { trace, peak_bytes, baseline_us, parts: Some(parts) })
    }

    /// As it was recorded, or in parts if their size is given.
    pub(crate) fn maybe_in_parts(&self, part_bytes: Option<NonZeroU64>) -> Cow<'_, Step> {
        part_bytes.map_or(Cow::Borrowed(self), |part_bytes| self.in_parts(part_bytes))
    }

    /// The most bytes of a part, if it is in parts.
    pub(crate) fn part_bytes(&self) -> Option<NonZeroU64> {
        self.parts.as_ref().map(|parts| parts.part_bytes)
    }

    /// An op by name and number.
    pub(crate) fn op_label(&self, op: OpIndex) -> String {
        let name = self.trace.ops.get(op.0 as usize).map(|op| &op.name);
        name.map_or_else(|| "the step's end".to_owned(), |name| format!("{name} #{}", op.0))
    }

    /// Refuses a plan for another step.
    ///
    /// # Errors
    /// One line that names both files and the first difference.
    pub(crate) fn check_plan(&self, plan: &Plan, path: &Path, trace: &Path) -> anyhow::Result<()> {
        let Some(difference) = self.difference(plan) else { return Ok(()) };
        bail!(
            "the plan '{}' was made for another step than '{}': {difference}; make one with \
             smartswap plan",
            path.display(),
            trace.display()
        )
    }

    fn difference(&self, plan: &Plan) -> Option<String> {
        let trace = &self.trace;
        if plan.op_count as usize != trace.ops.len() {
            return Some(format!("op_count is {}, of {} ops", plan.op_count, trace.ops.len()));
        }
        if plan.signature != trace.signature {
            let (theirs, ours) = (plan.signature.0, trace.signature.0);
            return Some(format!("signature is {theirs:016x} instead of {ours:016x}"));
        }
        let differs = |(position, block): (usize, &adaptive::PlanBlock)| {
            let own = trace.blocks.get(block.index.0 as usize);
            let same = own.is_some_and(|own| {
                own.size_bytes == block.size_bytes && own.origin == block.origin
            });
            (!same).then(|| format!("blocks[{position}] is not block {} here", block.index.0))
        };
        plan.blocks.iter().enumerate().find_map(differs)
    }
}

/// Makes all names such that people can be shown them.
fn make_names_plain(trace: &mut Trace) {
    let ops = trace.ops.iter_mut().map(|op| &mut op.name);
    for name in ops.chain(trace.blocks.iter_mut().map(|block| &mut block.name)) {
        *name = OneLine(&*name).to_string();
    }
}
