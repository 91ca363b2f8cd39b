//! Fails chosen driver calls, so that every error path can be walked.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use super::intercept::{Call, Intercept, PerCall};
use crate::driver::Driver;
use crate::error::{DriverError, ErrorKind};
use crate::sync::lock;

/// How long a fault lasts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lasting {
    /// One call fails; later ones go through.
    Once,
    /// The call and every later one that the plan covers fail, teardown included.
    ForGood,
}

/// Which call fails, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FaultPlan {
    /// The first call to fail: 1 is the first one that the plan covers after arming.
    pub call: u64,
    /// Whether later calls fail too.
    pub lasting: Lasting,
    /// What the failed call reports.
    pub kind: ErrorKind,
    /// Covers, and counts, only calls of this name (see
    /// [`FALLIBLE_CALLS`](crate::devices::FALLIBLE_CALLS)). `None` covers all.
    pub only: Option<&'static str>,
}

impl FaultPlan {
    /// The `call`-th call of any name fails once.
    pub fn once(call: u64, kind: ErrorKind) -> FaultPlan {
        FaultPlan { call, lasting: Lasting::Once, kind, only: None }
    }

    /// The `call`-th call of any name fails, and so does every call after it.
    pub fn for_good(call: u64, kind: ErrorKind) -> FaultPlan {
        FaultPlan { call, lasting: Lasting::ForGood, kind, only: None }
    }

    /// The same plan for calls named `name`.
    ///
    /// # Panics
    /// If the driver has no fallible call of that name.
    #[must_use]
    pub fn only(self, name: &'static str) -> FaultPlan {
        FaultPlan { only: Some(Call::named(name).name()), ..self }
    }
}

/// A driver whose calls fail by plan.
///
/// Each fallible call is counted. One that is chosen to fail does not reach the driver behind,
/// which is thus as it was. Unarmed, it only counts: run a script once to learn how many calls it
/// makes, then once for each of them.
///
/// Counts start anew when a plan is armed.
#[derive(Debug)]
pub struct FaultDriver {
    inner: Arc<dyn Driver>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<FaultPlan>,
    /// The plan's `only`.
    only: Option<Call>,
    /// Calls that the armed plan covers.
    covered: u64,
    calls: PerCall<u64>,
    hits: PerCall<u64>,
}

impl FaultDriver {
    /// Stands in front of `inner`, unarmed.
    pub fn new(inner: Arc<dyn Driver>) -> FaultDriver {
        FaultDriver { inner, state: Mutex::default() }
    }

    /// Starts to count from zero and to fail calls by `plan`.
    ///
    /// # Panics
    /// If `plan.call` is 0, or `plan.only` is not the name of a fallible call.
    pub fn arm(&self, plan: FaultPlan) {
        assert!(plan.call > 0, "calls are numbered from 1");
        let only = plan.only.map(Call::named);
        *self.lock() = State { plan: Some(plan), only, ..State::default() };
    }

    /// Lets every call through from now on. Counts stay and go on.
    pub fn disarm(&self) {
        self.lock().plan = None;
    }

    /// Fallible calls of any name, failed ones included.
    pub fn calls(&self) -> u64 {
        self.lock().calls.values().sum()
    }

    /// The same by name. Names that were not called are absent.
    pub fn calls_by_name(&self) -> BTreeMap<&'static str, u64> {
        self.lock().calls.counts()
    }

    /// Calls that this driver failed.
    pub fn injected(&self) -> u64 {
        self.lock().hits.values().sum()
    }

    /// The same by name. Names that were not failed are absent.
    pub fn hits(&self) -> BTreeMap<&'static str, u64> {
        self.lock().hits.counts()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The code that CUDA's driver gives for such an error, as far as it has one.
fn plausible_code(kind: ErrorKind) -> i64 {
    match kind {
        ErrorKind::OutOfMemory => 2,
        ErrorKind::Unsupported => 801,
        ErrorKind::Invalid => 1,
        ErrorKind::DeviceLost => 719,
        ErrorKind::Race => -1,
        ErrorKind::Failed => 999,
    }
}

impl Intercept for FaultDriver {
    type Entered = ();

    fn inner(&self) -> &dyn Driver {
        &*self.inner
    }

    /// Counts the call and decides its fate.
    fn enter(&self, call: Call, _: fmt::Arguments<'_>) -> Result<(), DriverError> {
        let mut state = self.lock();
        state.calls[call] += 1;
        let Some(plan) = state.plan else { return Ok(()) };
        if state.only.is_some_and(|only| only != call) {
            return Ok(());
        }
        state.covered += 1;
        let fails = match plan.lasting {
            Lasting::Once => state.covered == plan.call,
            Lasting::ForGood => state.covered >= plan.call,
        };
        if !fails {
            return Ok(());
        }
        state.hits[call] += 1;
        Err(DriverError {
            call: call.name(),
            code: plausible_code(plan.kind),
            text: format!("injected fault at call {}", state.covered).into(),
            kind: plan.kind,
        })
    }
}
