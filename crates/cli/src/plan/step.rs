//! A recorded step as the commands take it: loaded, checked, and with its own peak and time.

use std::path::Path;

use adaptive::{Machine, OneLine, OpIndex, Plan, RecordedConfig, Trace, simulate};
use anyhow::bail;

/// More than any step needs, and small enough to be added to.
pub(crate) const MEMORY_ENDLESS: u64 = u64::MAX / 4;

/// A recorded step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) trace: Trace,
    /// The most bytes that live at once, segments included, when everything stays.
    pub(crate) peak_bytes: u64,
    /// Device time of its ops when everything stays, in microseconds.
    pub(crate) baseline_us: f64,
}

impl Step {
    /// Loads a step.
    ///
    /// # Errors
    /// One line that names the file and the place.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Step> {
        let mut trace = adaptive::load_trace(path, &RecordedConfig::default())?;
        make_names_plain(&mut trace);
        if trace.ops.is_empty() {
            bail!("{} cannot be used: it has no operators: record a step", path.display());
        }
        let link =
            adaptive::Link { out_bytes_per_us: 1.0, in_bytes_per_us: 1.0, both_bytes_per_us: 1.0 };
        let endless =
            Machine { limit_bytes: MEMORY_ENDLESS, host_limit_bytes: 0, link, copy_submit_us: 0.0 };
        // Nothing moves, so the link does not matter.
        let free = simulate(&trace, &Plan::default(), &endless);
        let baseline_us = trace.ops.iter().map(|op| op.device_us).sum();
        Ok(Step { trace, peak_bytes: free.resident_bytes_peak, baseline_us })
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
