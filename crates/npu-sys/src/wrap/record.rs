//! Keeps a log of driver calls, to assert on in tests and to read when something went wrong.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use super::intercept::{Call, Intercept, PerCall};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::sync::lock;

/// One call of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedCall {
    /// Its place among all calls, from 1, also when older ones are no longer kept.
    pub number: u64,
    /// Its name, as the trait spells it.
    pub name: &'static str,
    /// Its arguments, in short.
    pub arguments: String,
    /// What it returned, in short, or why it failed.
    pub outcome: Result<String, DriverError>,
    /// Who called.
    pub thread: ThreadId,
}

impl fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordedCall { number, name, arguments, outcome, thread } = self;
        write!(f, "{number} {thread:?} {name}({arguments}) ")?;
        match outcome {
            Ok(value) => write!(f, "-> {value}"),
            Err(error) => write!(f, "failed: {error}"),
        }
    }
}

/// A driver that logs the fallible calls which pass through it.
///
/// A call enters the log when it returns, so a `synchronize_*` stands behind what other threads
/// did meanwhile.
#[derive(Debug)]
pub struct RecordDriver {
    inner: Arc<dyn Driver>,
    kept_max: usize,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    calls: VecDeque<RecordedCall>,
    total: u64,
    counts: PerCall<u64>,
}

impl RecordDriver {
    /// Stands in front of `inner` and keeps every call.
    pub fn new(inner: Arc<dyn Driver>) -> RecordDriver {
        RecordDriver::bounded(inner, usize::MAX)
    }

    /// Stands in front of `inner` and keeps the latest `kept_max` calls. Counts cover all.
    pub fn bounded(inner: Arc<dyn Driver>, kept_max: usize) -> RecordDriver {
        RecordDriver { inner, kept_max, log: Mutex::default() }
    }

    /// How often `name` was called, failed calls included.
    ///
    /// # Panics
    /// If the driver has no fallible call of that name.
    pub fn count(&self, name: &str) -> u64 {
        self.lock().counts[Call::named(name)]
    }

    /// How often each name was called. Names that were not called are absent.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.counts()
    }

    /// Calls of any name.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// The kept calls, oldest first.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.lock().calls.iter().cloned().collect()
    }

    /// The kept calls as text, a line each, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lock().calls.iter().map(RecordedCall::to_string).collect()
    }

    /// Empties the log and the counts.
    pub fn clear(&self) {
        *self.lock() = Log::default();
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

impl Intercept for RecordDriver {
    /// The arguments, in short: they may be gone when the call returns.
    type Entered = String;

    fn inner(&self) -> &dyn Driver {
        &*self.inner
    }

    fn enter(&self, _: Call, arguments: fmt::Arguments<'_>) -> Result<String, DriverError> {
        Ok(arguments.to_string())
    }

    fn leave<T: fmt::Debug>(&self, call: Call, arguments: String, result: &Result<T, DriverError>) {
        let outcome = match result {
            Ok(value) => Ok(format!("{value:?}")),
            Err(error) => Err(error.clone()),
        };
        let (name, thread) = (call.name(), thread::current().id());
        let mut log = self.lock();
        log.total += 1;
        log.counts[call] += 1;
        let number = log.total;
        log.calls.push_back(RecordedCall { number, name, arguments, outcome, thread });
        if log.calls.len() > self.kept_max {
            log.calls.pop_front();
        }
    }
}
