//! What a plan does and why, as text and as the JSON object.

use std::fmt::Write as _;

use adaptive::{
    Budget, Decision, Generated, Layout, Named, Prefer, PrintLevel, Shortfall, Strategy, Treatment,
    gap_fraction, gap_reason,
};
use serde::Serialize;

use super::holders::holders;
use super::step::{Parts, Step};
use super::steps::{self, MemberRow};
use crate::args::PlanOptions;
use crate::report::columns::{self, Align};
use crate::report::units;

/// Rows of the table in the terminal: of blocks that leave, and of those that stay.
const ROWS_MAX: [usize; 2] = [24, 16];
/// Blocks listed where memory is short.
const HOLDERS_MAX: usize = 16;

/// Everything that is shown of a plan.
pub(super) struct Report<'a> {
    pub(super) args: &'a PlanOptions,
    pub(super) step: &'a Step,
    pub(super) budget_bytes: u64,
    pub(super) made: &'a Generated,
    /// No plan adds less.
    pub(super) bound_us: f64,
    pub(super) plan_ms: f64,
    /// Where the blocks would lie in training, if the plan reaches the budget.
    pub(super) layout: Option<Layout>,
    /// What becomes of each step, where the file holds several.
    pub(super) members: Vec<MemberRow>,
}

/// What the simulation says is null where no plan reaches the budget: it ends early then.
#[derive(Serialize)]
struct Object<'a> {
    trace: String,
    op_count: usize,
    /// Where operators over lists run in parts; ops are then counted and named as such.
    in_parts: Option<Parts>,
    strategy: &'static str,
    prefer: &'static str,
    budget_bytes: u64,
    peak_before_bytes: u64,
    peak_bytes: Option<u64>,
    held_bytes_peak: Option<u64>,
    host_bytes_peak: Option<u64>,
    /// What the step holds where each block has its place: of the live bytes at their peak, 1 is
    /// perfect. What is above the budget is mapped anew in each step.
    layout_bytes: Option<u64>,
    layout_ratio: Option<f64>,
    recorded_us: f64,
    baseline_us: f64,
    step_us: Option<f64>,
    bound_us: f64,
    gap_fraction: Option<f64>,
    /// Set where the gap is above 3 % of the step.
    gap_reason: Option<String>,
    swapped_out_bytes: Option<u64>,
    swapped_in_bytes: Option<u64>,
    recomputed_ops: Option<u64>,
    recomputed_us: Option<f64>,
    stall_us: Option<f64>,
    misses: Option<u64>,
    rescues: Option<u64>,
    plan_ms: f64,
    infeasible: Option<u64>,
    short_at: Option<ShortAt<'a>>,
    /// Empty where the file holds one step; else all above is about the largest.
    members: &'a [MemberRow],
    decisions: Vec<DecisionObject<'a>>,
}

#[derive(Serialize)]
struct ShortAt<'a> {
    op: u32,
    op_name: Option<&'a str>,
    largest_blocks: Vec<HolderObject>,
}

#[derive(Serialize)]
struct HolderObject {
    block: u32,
    name: String,
    size_bytes: u64,
    in_use: bool,
}

#[derive(Serialize)]
struct DecisionObject<'a> {
    block: u32,
    name: &'a str,
    size_bytes: u64,
    treatment: &'static str,
    leaves_after: Option<u32>,
    returns_before: Option<u32>,
    reason: String,
    added_us: f64,
}

impl Report<'_> {
    /// The part of the step by which the plan misses the bound.
    fn gap_fraction(&self) -> f64 {
        gap_fraction(self.made, self.bound_us)
    }

    fn layout_ratio(&self) -> Option<f64> {
        let live_bytes = self.made.simulation.resident_bytes_peak.max(1) as f64;
        self.layout.as_ref().map(|layout| layout.total_bytes() as f64 / live_bytes)
    }

    /// The JSON object, on one line.
    pub(super) fn json(&self) -> serde_json::Result<String> {
        let Report { args, step, made, .. } = self;
        let simulation = &made.simulation;
        let missing = made.infeasible;
        let whole = missing.is_none();
        let bytes = |count: u64| whole.then_some(count);
        let time = |us: f64| whole.then_some(us);
        serde_json::to_string(&Object {
            trace: args.trace.display().to_string(),
            op_count: step.trace.ops.len(),
            in_parts: step.parts.clone(),
            strategy: args.strategy.name(),
            prefer: Prefer::of(made.movable).name(),
            budget_bytes: self.budget_bytes,
            peak_before_bytes: step.peak_bytes,
            peak_bytes: bytes(simulation.resident_bytes_peak),
            held_bytes_peak: bytes(simulation.held_bytes_peak),
            host_bytes_peak: bytes(simulation.host_bytes_peak),
            layout_bytes: self.layout.as_ref().map(Layout::total_bytes),
            layout_ratio: self.layout_ratio(),
            recorded_us: step.trace.step_us,
            baseline_us: made.unlimited_us,
            step_us: time(simulation.step_us),
            bound_us: self.bound_us,
            gap_fraction: time(self.gap_fraction()),
            gap_reason: gap_reason(&step.trace, made, self.bound_us),
            swapped_out_bytes: bytes(simulation.swapped_out_bytes),
            swapped_in_bytes: bytes(simulation.swapped_in_bytes),
            recomputed_ops: bytes(simulation.recomputed_ops),
            recomputed_us: time(simulation.recomputed_us),
            stall_us: time(simulation.stall_us),
            misses: bytes(simulation.misses),
            rescues: bytes(simulation.rescues),
            plan_ms: self.plan_ms,
            infeasible: missing.map(|shortfall| shortfall.missing_bytes),
            short_at: missing.map(|shortfall| self.short_at(shortfall)),
            members: &self.members,
            decisions: made.decisions.iter().map(decision_object).collect(),
        })
    }

    fn short_at(&self, shortfall: Shortfall) -> ShortAt<'_> {
        let op = self.step.trace.ops.get(shortfall.op.0 as usize);
        let holder = |holder: super::holders::Holder| HolderObject {
            block: holder.block.0,
            name: holder.name,
            size_bytes: holder.size_bytes,
            in_use: holder.in_use,
        };
        let holders = holders(&self.step.trace, self.made, shortfall.op);
        ShortAt {
            op: shortfall.op.0,
            op_name: op.map(|op| op.name.as_str()),
            largest_blocks: holders.into_iter().take(HOLDERS_MAX).map(holder).collect(),
        }
    }

    /// The text for the terminal.
    pub(super) fn text(&self) -> String {
        format!("{}{}\n{}", self.figures(), steps::table(&self.members), self.table())
    }

    fn figures(&self) -> String {
        let parts = self.step.parts.as_ref().map(|parts| ("in parts", parts.to_string()));
        let lines = self.request().into_iter().chain(parts).chain(self.outcome());
        lines.map(|(name, words)| format!("{name:<12}{words}\n")).collect()
    }

    /// What was asked for, by name.
    fn request(&self) -> [(&'static str, String); 3] {
        let Report { args, step, made, budget_bytes, .. } = self;
        let share = match args.budget {
            Budget::Percent(percent) => format!("{percent} %"),
            _ => units::percent(*budget_bytes as f64, step.peak_bytes as f64),
        };
        let moves = match Prefer::of(made.movable) {
            Prefer::Performance => "activations",
            Prefer::Memory if args.planner.prefer == Some(Prefer::Performance) => {
                "weights and optimizer state too: activations alone cannot reach the budget"
            }
            Prefer::Memory => "activations, weights and optimizer state",
        };
        let step_words = format!(
            "{}: {}, recorded in {}",
            args.trace.display(),
            units::count(step.trace.ops.len() as u64, "op"),
            units::time(step.trace.step_us)
        );
        let budget = units::bytes(*budget_bytes);
        [
            ("step", step_words),
            ("budget", format!("{budget}, {share} of the step's own peak")),
            ("strategy", format!("{}; may leave: {moves}", args.strategy.name())),
        ]
    }

    /// What the plan does, by name.
    fn outcome(&self) -> Vec<(&'static str, String)> {
        let Report { step, made, .. } = self;
        let simulation = &made.simulation;
        let (baseline_us, step_us) = (made.unlimited_us, simulation.step_us);
        let more = 100.0 * (step_us - baseline_us) / baseline_us.max(f64::MIN_POSITIVE);
        let peak = format!(
            "{} before, {} after; {} with the cache",
            units::bytes(step.peak_bytes),
            units::bytes(simulation.resident_bytes_peak),
            units::bytes(simulation.held_bytes_peak)
        );
        let (before, after) = (units::time(baseline_us), units::time(step_us));
        let swapped = format!(
            "{} out, {} in; at most {} on the host",
            units::bytes(simulation.swapped_out_bytes),
            units::bytes(simulation.swapped_in_bytes),
            units::bytes(simulation.host_bytes_peak)
        );
        let recomputed = units::count(simulation.recomputed_ops, "op");
        let kind = match self.args.strategy {
            Strategy::Swap => "no plan of copies alone",
            _ => "no plan",
        };
        let bound = format!(
            "{kind} adds less than {}; this one adds {}: a gap of {:.2} % of the step",
            units::time(self.bound_us),
            units::time(made.added_us().max(0.0)),
            100.0 * self.gap_fraction()
        );
        let mut lines = vec![
            ("peak", peak),
            ("step time", format!("{before} before, {after} after: {more:.2} % more")),
            ("swapped", swapped),
            ("recomputed", format!("{recomputed}, {}", units::time(simulation.recomputed_us))),
            ("stalls", units::time(simulation.stall_us)),
            ("bound", bound),
            ("planned in", units::time(self.plan_ms * 1e3)),
        ];
        if let Some(reason) = gap_reason(&step.trace, made, self.bound_us) {
            lines.push(("why more", reason));
        }
        if let Some(note) = self.min_size_note() {
            lines.push(("min size", note));
        }
        if !simulation.went_to_plan() {
            let (misses, rescues) = (simulation.misses, simulation.rescues);
            let words = format!("{misses} touches of blocks that were away, {rescues} evictions");
            lines.push(("on demand", words));
        }
        lines
    }

    /// Says so where `--min-size` asks for tensors that the step has no record of.
    fn min_size_note(&self) -> Option<String> {
        let asked_bytes = self.args.min_size_bytes?;
        let smallest_bytes = self.step.trace.blocks.iter().map(|block| block.size_bytes).min()?;
        let shared_bytes = adaptive::RecordedConfig::default().swap_threshold_bytes;
        let in_vain = asked_bytes < shared_bytes && smallest_bytes >= shared_bytes;
        in_vain.then(|| {
            format!(
                "{} changes nothing: tensors below {} share segments and cannot move alone",
                units::bytes(asked_bytes),
                units::bytes(shared_bytes)
            )
        })
    }

    /// What becomes of the largest blocks, those that leave first, and why.
    fn table(&self) -> String {
        let mut decisions: Vec<&Decision> = self.made.decisions.iter().collect();
        decisions.sort_by_key(|decision| std::cmp::Reverse(decision.size_bytes));
        let all = decisions.len();
        let (mut decisions, mut stay): (Vec<&Decision>, Vec<&Decision>) =
            decisions.into_iter().partition(|decision| decision.treatment != Treatment::Keep);
        if self.args.print_level > PrintLevel::Debug {
            decisions.truncate(ROWS_MAX[0]);
            stay.truncate(ROWS_MAX[1]);
        }
        decisions.extend(stay);
        let hidden = all - decisions.len();
        let mut rows = vec![
            ["tensor", "size", "choice", "away after", "until", "adds", "why"].map(str::to_owned),
        ];
        rows.extend(decisions.into_iter().map(|decision| self.row(decision)));
        let mut text = columns::lines(&rows, Align::Left);
        if hidden > 0 {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "and {hidden} more: see --json");
        }
        text
    }

    fn row(&self, decision: &Decision) -> [String; 7] {
        let stays = decision.treatment == Treatment::Keep;
        let op = |op: Option<adaptive::OpIndex>, none: &str| match op {
            _ if stays => String::new(),
            Some(op) => self.step.op_label(op),
            None => none.to_owned(),
        };
        [
            decision.name.clone(),
            units::bytes(decision.size_bytes),
            decision.treatment.name().to_owned(),
            op(decision.leaves_after, "the step's start"),
            op(decision.returns_before, "the step's end"),
            if stays { String::new() } else { units::time(decision.added_us) },
            decision.reason.to_string(),
        ]
    }
}

fn decision_object(decision: &Decision) -> DecisionObject<'_> {
    DecisionObject {
        block: decision.block.0,
        name: &decision.name,
        size_bytes: decision.size_bytes,
        treatment: decision.treatment.name(),
        leaves_after: decision.leaves_after.map(|op| op.0),
        returns_before: decision.returns_before.map(|op| op.0),
        reason: decision.reason.to_string(),
        added_us: decision.added_us,
    }
}
