//! A planner that cannot end a training. What goes wrong in it is told once, and the kind of step
//! at hand goes on without a new plan.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};

use swap_core::{Signature, Trace};

use crate::search::{Feedback, Planner, Proposal};

#[derive(Debug)]
pub(crate) struct Guarded<P> {
    pub(crate) inner: P,
    /// Kinds of steps that could not be planned. It is not asked for them again.
    failed: BTreeSet<Signature>,
    /// What has gone wrong, for whoever asks.
    failures: Vec<String>,
}

impl<P: Planner> Guarded<P> {
    pub(crate) fn new(inner: P) -> Guarded<P> {
        Guarded { inner, failed: BTreeSet::new(), failures: Vec::new() }
    }

    /// A plan, if there is one to offer and nothing goes wrong.
    pub(crate) fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Option<Proposal> {
        if self.failed.contains(&trace.signature) {
            return None;
        }
        // A plan that was not finished goes nowhere: the planner starts anew for the next one.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| self.inner.plan(trace, feedback)));
        let why = match outcome {
            Ok(Ok(proposal)) => return proposal,
            Ok(Err(fault)) => fault.to_string(),
            Err(payload) => format!("internal error: {}", words(&*payload)),
        };
        let text = format!("a kind of step goes on without a new plan, as planning failed: {why}");
        tracing::warn!("{text}");
        self.failed.insert(trace.signature);
        self.failures.push(text);
        None
    }

    /// Whether a plan that was asked for comes later.
    pub(crate) fn is_busy(&self, kind: Signature) -> bool {
        !self.failed.contains(&kind) && self.inner.is_busy(kind)
    }

    /// Whether that plan is not there yet.
    pub(crate) fn is_at_work(&self, kind: Signature) -> bool {
        self.is_busy(kind) && self.inner.is_at_work(kind)
    }

    pub(crate) fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }
}

/// What a panic says, on one line.
fn words(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").replace('\n', " ")
}
