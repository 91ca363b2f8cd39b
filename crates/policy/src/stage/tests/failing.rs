//! A planner that fails leaves training on demand, says so once, and is not asked again.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use swap_core::BlockIndex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

/// How a planner fails.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Error,
    Panic,
    /// With something else than words.
    Number,
}

/// Offers so many plans, then fails.
#[derive(Debug)]
struct Failing {
    way: Way,
    good: u32,
    asked: Vec<Signature>,
}

impl Planner for Failing {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked.push(trace.signature);
        let op_count = self.asked.len() as u32;
        if op_count <= self.good {
            let plan = Plan { signature: trace.signature, op_count, ..Plan::default() };
            return Ok(Some(Proposal { plan, ..Proposal::default() }));
        }
        match self.way {
            Way::Error => Err(TraceFault::Block(BlockIndex(7))),
            Way::Panic => panic!("it broke\nin {} pieces", 2),
            Way::Number => std::panic::panic_any(7),
        }
    }
}

/// Keeps warnings.
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0 = format!("{value:?}");
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

/// Runs steps, and returns the last directive, the loop and the lines logged.
fn run(
    way: Way,
    good: u32,
    steps: impl IntoIterator<Item = StepReport>,
) -> (Directive, Loop<Failing>, Vec<String>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut under_test = Loop::new(config(), Failing { way, good, asked: Vec::new() });
    tracing::subscriber::with_default(Warnings(Arc::clone(&seen)), || {
        for report in steps {
            under_test.observe(&report);
        }
    });
    let lines = seen.lock().expect("no subscriber panics").clone();
    (under_test.directive(), under_test, lines)
}

/// Long enough for every new search that a disturbed kind of step may get, and for it to be
/// forgotten that there were some.
fn disturbed_twice(kind: Signature) -> impl Iterator<Item = StepReport> {
    (0..200).map(move |round| if round % 100 < 30 { rescued(kind) } else { step(kind) })
}

#[test]
fn a_failing_planner_leaves_training_on_demand_and_says_so_once() {
    let ways = [
        (Way::Error, "block 7 is empty"),
        (Way::Panic, "internal error: it broke in 2 pieces"),
        (Way::Number, "internal error: a panic without a message"),
    ];
    for (way, words) in ways {
        let (directive, mut under_test, lines) =
            run(way, 0, [A, B, A].into_iter().flat_map(disturbed_twice));
        assert_eq!((directive.stage, directive.plan), (Stage::Stable, None), "{way:?}");
        assert_eq!(under_test.planner().asked, [A, B], "it is asked once for each kind");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains(words) && !lines[0].contains('\n'), "{lines:?}");
        assert_eq!(under_test.take_failures(), lines);
        assert!(under_test.take_failures().is_empty(), "each is told once");
    }
}

#[test]
fn a_planner_that_fails_later_leaves_the_best_plan_in_place() {
    for way in [Way::Error, Way::Panic] {
        // On demand at first, then under a plan that is better but could wait less.
        let waiting = (0..20).map(|_| taking(A, 80.0));
        let steps = [rescued(A), rescued(A)].into_iter().chain(waiting);
        let (directive, under_test, lines) = run(way, 1, steps);
        assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 1), "{way:?}");
        assert_eq!((under_test.planner().asked.len(), lines.len()), (2, 1), "{lines:?}");
    }
}
