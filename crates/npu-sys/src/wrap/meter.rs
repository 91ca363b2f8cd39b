//! Measures what each driver call costs the host.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Instant;

use super::intercept::{Call, Intercept, PerCall};
use crate::driver::Driver;
use crate::error::DriverError;

/// What the calls of one name cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CallCost {
    /// How many there were.
    pub count: u64,
    /// Host time of all of them, in microseconds.
    pub total_us: f64,
}

/// A driver that adds up the host time of its calls, by name, apart for the thread that made it
/// and for all others. It takes no lock, and costs two readings of the clock a call.
#[derive(Debug)]
pub struct MeterDriver {
    inner: Arc<dyn Driver>,
    owner: ThreadId,
    own: PerCall<Sum>,
    others: PerCall<Sum>,
}

/// What the calls of one name cost so far.
#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Sum {
    /// `None` if there were none.
    fn cost(&self) -> Option<CallCost> {
        let count = self.count.load(Ordering::Relaxed);
        let total_us = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e3;
        (count > 0).then_some(CallCost { count, total_us })
    }

    fn clear(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.nanoseconds.store(0, Ordering::Relaxed);
    }
}

impl MeterDriver {
    /// Measures the calls of `inner`.
    pub fn new(inner: Arc<dyn Driver>) -> MeterDriver {
        let owner = thread::current().id();
        MeterDriver { inner, owner, own: PerCall::default(), others: PerCall::default() }
    }

    /// What the thread that made this spent since the last [`clear`](MeterDriver::clear), by
    /// name. Names that were not called are left out.
    pub fn costs(&self) -> BTreeMap<&'static str, CallCost> {
        self.own.by_name(Sum::cost)
    }

    /// What all other threads spent.
    pub fn costs_of_others(&self) -> BTreeMap<&'static str, CallCost> {
        self.others.by_name(Sum::cost)
    }

    /// Starts anew.
    pub fn clear(&self) {
        self.own.values().chain(self.others.values()).for_each(Sum::clear);
    }
}

impl Intercept for MeterDriver {
    /// When the call began.
    type Entered = Instant;

    fn inner(&self) -> &dyn Driver {
        &*self.inner
    }

    #[allow(clippy::disallowed_methods)] // The host's time is what it is about.
    fn enter(&self, _: Call, _: fmt::Arguments<'_>) -> Result<Instant, DriverError> {
        Ok(Instant::now())
    }

    fn leave<T: fmt::Debug>(&self, call: Call, began: Instant, _: &Result<T, DriverError>) {
        let spent = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let is_own = thread::current().id() == self.owner;
        let sum = if is_own { &self.own[call] } else { &self.others[call] };
        sum.count.fetch_add(1, Ordering::Relaxed);
        sum.nanoseconds.fetch_add(spent, Ordering::Relaxed);
    }
}
