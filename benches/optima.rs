//! Small steps with certified optima: what the planner and its bound are held against.
//!
//! Each entry of `optima/suite.tsv` names a step, which [`steps`] makes again from its kind and
//! number, a budget, and the best plan of all. So a plan of any planner can be held against the
//! optimum, and any bound.
//!
//! **What is certified.** No plan of the format (docs/plan-format.md) is faster that leaves nothing
//! to demand: blocks may leave and come back at any operator, as often as they like, early copies,
//! replays and chains of them included. [`search`] has looked through all of that and says how.
//! Two things are asked of a plan ([`added_us`]):
//!
//! - Its time is that of the second step in a row, or of the eighth if that is longer: a plan that
//!   lives on credit from the first step is no plan.
//! - It does not count on memory that is still being copied (`physical.rs`).
//!
//! The link is as fast both ways at once as one way: only then is more progress never worse, which
//! the proof needs. Steps for which nothing could be proven are not in the suite.
//!
//! A planner may leave something to demand, and be faster.

use adaptive::{
    Action, ActionKind, BlockIndex, Link, Machine, OpIndex, Phase, Plan, Simulation, Simulator,
    Trace, assemble, simulate,
};

mod model;
mod physical;
pub mod search;
mod state;
pub mod steps;

pub use search::{Optimum, optimum};
pub use steps::{Kind, step};

const SUITE: &str = include_str!("optima/suite.tsv");

/// Steps in a row that a plan is judged by.
const STEPS: usize = 8;

/// One step of the suite, with the best plan for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What kind of step it is.
    pub kind: Kind,
    /// Its number within the kind.
    pub number: u64,
    /// The budget.
    pub limit_bytes: u64,
    /// What the best plan adds, in microseconds.
    pub added_us: f64,
    /// That plan.
    pub plan: Plan,
}

impl Entry {
    /// The entry as a line of the suite's file.
    pub fn line(&self) -> String {
        let moves: Vec<String> = self.plan.actions.iter().map(move_text).collect();
        let Entry { kind, number, limit_bytes, added_us, .. } = self;
        format!("{}\t{number}\t{limit_bytes}\t{added_us:.3}\t{}", kind.name(), moves.join(" "))
    }

    /// The entry of a line. Nothing if it is none.
    pub fn parse(line: &str) -> Option<Entry> {
        let cells: Vec<&str> = line.split('\t').collect();
        let [kind, number, limit_bytes, added_us, moves] = cells[..] else { return None };
        let kind = Kind::ALL.into_iter().find(|one| one.name() == kind)?;
        let number = number.parse().ok()?;
        let actions = moves.split(' ').map(move_of).collect::<Option<Vec<Action>>>()?;
        Some(Entry {
            kind,
            number,
            limit_bytes: limit_bytes.parse().ok()?,
            added_us: added_us.parse().ok()?,
            plan: assemble(&step(kind, number), actions),
        })
    }
}

/// The entries of the suite.
///
/// # Panics
/// If its file is damaged.
pub fn suite() -> Vec<Entry> {
    let lines = SUITE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| Entry::parse(line).unwrap_or_else(|| panic!("no entry: {line}"))).collect()
}

/// The letters of moves: out, in, discard, replay.
const LETTERS: [(char, ActionKind); 4] = [
    ('o', ActionKind::SwapOut),
    ('i', ActionKind::SwapIn),
    ('d', ActionKind::Discard),
    ('r', ActionKind::Replay),
];

/// A move such as `E3o7`: at the end of operator 3, block 7 leaves.
fn move_text(action: &Action) -> String {
    let phase = if action.phase == Phase::Begin { 'B' } else { 'E' };
    let letter = LETTERS.into_iter().find(|&(_, kind)| kind == action.kind);
    let letter = letter.map_or(' ', |(letter, _)| letter);
    format!("{phase}{}{letter}{}", action.op.0, action.block.0)
}

fn move_of(text: &str) -> Option<Action> {
    let at = text.find(|letter: char| letter.is_ascii_lowercase())?;
    let (place, rest) = text.split_at(at);
    let (letter, block) = rest.split_at(1);
    let phase = match place.get(..1)? {
        "B" => Phase::Begin,
        "E" => Phase::End,
        _ => return None,
    };
    let op = OpIndex(place[1..].parse().ok()?);
    let kind = LETTERS.into_iter().find(|&(own, _)| letter == own.to_string())?.1;
    Some(Action { op, phase, kind, block: BlockIndex(block.parse().ok()?), due: op })
}

/// The link and the host of all steps.
pub fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: 1 << 40,
        link: Link {
            out_bytes_per_us: 25_000.0,
            in_bytes_per_us: 26_000.0,
            both_bytes_per_us: 26_000.0,
        },
        copy_submit_us: 8.0,
    }
}

/// The most bytes that live at once.
pub fn peak_bytes(trace: &Trace) -> u64 {
    simulate(trace, &Plan::default(), &machine(1 << 50)).resident_bytes_peak
}

/// What a plan adds to the step's own time, in microseconds; nothing if it does not fit, leaves
/// moves to demand, or counts on memory that is still being copied.
pub fn added_us(trace: &Trace, machine: &Machine, plan: &Plan) -> Option<f64> {
    let steps = Simulator::new(trace, *machine).steps(plan, STEPS);
    let whole = steps.len() == STEPS && steps[1..].iter().all(Simulation::went_to_plan);
    let fits = whole && physical::has_room(trace, plan, &steps, machine.limit_bytes);
    fits.then(|| steps[1].step_us.max(steps[STEPS - 1].step_us) - trace.ops_us())
}
