//! The host driver: a software device that keeps the whole contract of [`Driver`](crate::Driver).
//!
//! ```text
//!   Driver calls (device.rs)
//!      |-- memory.rs     who holds what, by ../table.rs        vm.rs        addresses (mmap)
//!      |                 mappings.rs  how many there may be    physical.rs  chunks (one memfd)
//!      |-- schedule.rs   threads.rs | lockstep.rs              link.rs      how long copies take
//!      |                 (real time | virtual clock)           effect.rs    the work itself
//!      '-- ledger.rs, timeline.rs                              what is held, what has run
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::DriverError;
use crate::host::config::{HostConfig, Mode};
use crate::host::ledger::Ledger;
use crate::host::lockstep::Lockstep;
use crate::host::memory::Memory;
use crate::host::schedule::Schedule;
use crate::host::signal::Signal;
use crate::host::threads::Threads;
use crate::host::timeline::{DeviceSpan, Journal};
use crate::sync::lock;
use crate::types::{EventKind, StreamHandle};

pub(crate) mod config;
mod device;
mod effect;
mod failure;
pub(crate) mod ledger;
mod link;
mod lockstep;
mod mappings;
mod memory;
mod physical;
mod schedule;
mod signal;
mod threads;
pub(crate) mod timeline;
mod vm;

/// A device made of host memory.
///
/// - Device addresses are host addresses, so host functions are its kernels. Memory is reached
///   only between `set_access` and `unmap`; a touch at any other time is a real fault.
/// - Its capacity is enforced, and all misuse that it can see is an
///   [`Invalid`](crate::ErrorKind::Invalid) error.
/// - Host functions may look at the driver but not submit work or wait. In lockstep they run
///   inside whatever call comes next, so they must not lock what a caller of the driver holds.
/// - A panic in a host function is kept: every later synchronize, query and `elapsed_us` fails
///   with its text. All other calls go on, so that everything can be given back.
/// - Dropping it drops work that has not begun, and frees all memory it gave out.
pub struct HostDriver {
    config: HostConfig,
    // Before `memory`: it is dropped first, so no work is left when addresses go away.
    schedule: Box<dyn Schedule>,
    journal: Arc<Journal>,
    events: Mutex<Events>,
    stream_count: AtomicU64,
    captured: Mutex<BTreeSet<StreamHandle>>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Events {
    count_ever: u64,
    by_handle: BTreeMap<u64, Event>,
}

#[derive(Debug)]
struct Event {
    kind: EventKind,
    /// What the event stands for; `None` until recorded.
    latest: Option<Arc<Signal>>,
}

impl HostDriver {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) settings, or no memory file from the system.
    pub fn new(config: HostConfig) -> Result<Arc<HostDriver>, DriverError> {
        let page_bytes = rustix::param::page_size() as u64;
        config.check(page_bytes)?;
        let journal = Arc::new(Journal::default());
        let written = Arc::clone(&journal);
        let schedule: Box<dyn Schedule> = match config.mode {
            Mode::Threads => Box::new(Threads::new(config.link, config.queue_depth, written)),
            Mode::Lockstep(order) => Box::new(Lockstep::new(order, config.link, written)),
        };
        let memory = Mutex::new(Memory::new(&config, page_bytes)?);
        let events = Mutex::new(Events::default());
        let (stream_count, captured) = (AtomicU64::new(0), Mutex::default());
        let driver =
            HostDriver { config, schedule, journal, events, stream_count, captured, memory };
        Ok(Arc::new(driver))
    }

    /// The settings that it was opened with.
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// What is held now, and what was copied.
    pub fn ledger(&self) -> Ledger {
        let memory = lock(&self.memory).ledger();
        Ledger {
            stream_count: self.stream_count.load(Ordering::Relaxed),
            event_count: lock(&self.events).by_handle.len() as u64,
            copied_out_bytes: self.journal.copied_out_bytes(),
            copied_in_bytes: self.journal.copied_in_bytes(),
            ..memory
        }
    }

    /// From now on a stream is captured by somebody, or no longer: until then nothing can be
    /// submitted to it here or waited for. What it was given before runs on.
    pub fn set_captured(&self, stream: StreamHandle, is_captured: bool) {
        let mut captured = lock(&self.captured);
        if is_captured {
            captured.insert(stream)
        } else {
            captured.remove(&stream)
        };
    }

    /// Starts a new measurement of the ledger's peaks.
    pub fn reset_peaks(&self) {
        lock(&self.memory).reset_peaks();
    }

    /// Writes down from now on what runs. What an earlier recording left is dropped.
    pub fn start_timeline(&self) {
        self.journal.start();
    }

    /// Ends the recording and returns it, in the order in which work was complete.
    pub fn take_timeline(&self) -> Vec<DeviceSpan> {
        self.journal.take()
    }

    /// The clock of the driver in microseconds: since it was opened, or virtual in lockstep.
    pub fn now_us(&self) -> f64 {
        self.schedule.now_us()
    }

    /// Lets `us` microseconds pass on the virtual clock of the host.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on threads, where time passes by itself;
    /// [`Invalid`](crate::ErrorKind::Invalid) for a time that is negative or not finite.
    pub fn advance(&self, us: f64) -> Result<(), DriverError> {
        device::refuse_host_function("advance")?;
        self.schedule.advance(us)
    }

    /// Blocks the host until all work submitted to any stream is complete.
    ///
    /// # Errors
    /// As [`synchronize_stream`](crate::Driver::synchronize_stream).
    pub fn synchronize(&self) -> Result<(), DriverError> {
        let call = "synchronize";
        device::refuse_host_function(call)?;
        for stream in self.schedule.streams() {
            self.schedule.drain(call, stream)?;
        }
        self.journal.check(call)
    }
}

impl fmt::Debug for HostDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostDriver")
            .field("config", &self.config)
            .field("ledger", &self.ledger())
            .finish_non_exhaustive()
    }
}
