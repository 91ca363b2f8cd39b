//! Judges errors, and the end of each step and run.

use swap_core::{Driver, Error, Residency};

use super::{Shadow, Stop, Tally, World};

impl World {
    /// Judges a failed call. `extra_bytes` is what the call itself asked for.
    pub(super) fn judge(&mut self, error: Error, extra_bytes: u64) -> Stop {
        match error {
            Error::OutOfMemory(report) => {
                self.tally.out_of_memory += 1;
                let needed = {
                    let mut shared = self.shared.lock().expect("no kernel panics");
                    let extra_bytes = match extra_bytes {
                        0 => 0,
                        bytes => bytes.max(shared.lot_bytes_max),
                    };
                    let open_bytes = shared.open_bytes() + extra_bytes;
                    shared.needed_bytes.take().unwrap_or(0).max(open_bytes)
                };
                let (segments, slack) = match self.engine.memory_stats() {
                    Ok(stats) => (stats.segment_bytes.current, stats.slack_bytes),
                    Err(error) => return Stop::Broken(error.to_string()),
                };
                if report.host_full {
                    self.tally.host_full += 1;
                    if self.setup.arena_bytes < 1 << 30 {
                        return Stop::OutOfMemory;
                    }
                }
                if self.setup.faults || needed + segments + slack > self.setup.limit_bytes {
                    return Stop::OutOfMemory;
                }
                Stop::Broken(format!(
                    "out of memory, but open ops need only {needed} + {segments} of {}: {report}",
                    self.setup.limit_bytes
                ))
            }
            error if self.setup.faults => {
                let _ = error;
                Stop::Fault
            }
            error => Stop::Broken(format!("unexpected error: {error}")),
        }
    }

    /// The largest discarded block: a write may first have to bring it back.
    pub(super) fn largest_discarded(&self) -> u64 {
        let discarded = |shadow: &&Shadow| {
            shadow.live && self.engine.residency(shadow.id) == Ok(Residency::Discarded)
        };
        let sizes =
            self.blocks.iter().filter(discarded).map(|shadow| self.physical(shadow.size_bytes));
        sizes.max().unwrap_or(0)
    }

    /// What kernels, the checker and the ledger say.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        if let Some(error) = self.shared.lock().expect("no kernel panics").errors.first() {
            return Err(format!("wrong bytes: {error}"));
        }
        if let Some(violation) = self.check.violations().first() {
            return Err(format!("not ordered: {violation:?}"));
        }
        let ledger = self.judge.ledger();
        if ledger.chunk_bytes_peak > self.setup.limit_bytes {
            return Err(format!(
                "{} held under a cap of {}",
                ledger.chunk_bytes_peak, self.setup.limit_bytes
            ));
        }
        if ledger.registered_bytes_peak > self.setup.arena_bytes {
            return Err(format!("{} pinned", ledger.registered_bytes_peak));
        }
        let stats = self.engine.memory_stats().map_err(|error| error.to_string())?;
        if stats.reserved_bytes.current != ledger.chunk_bytes {
            return Err(format!("{stats:?} disagrees with {ledger:?}"));
        }
        let live = || self.blocks.iter().filter(|shadow| shadow.live);
        let requested: u64 = live().map(|shadow| shadow.size_bytes).sum();
        if stats.requested_bytes.current != requested {
            return Err(format!("{requested} requested, {stats:?}"));
        }
        Ok(())
    }

    /// Ends everything and looks at what is left.
    pub(crate) fn close(mut self) -> Result<Tally, String> {
        if let Ok(reports) = self.engine.drain_reports() {
            self.take(reports);
        }
        let World { engine, ops, judge, check, shared, mut tally, streams, event, .. } = self;
        drop(ops);
        drop(engine);
        check.destroy_event(event).expect("the event is ours");
        check.destroy_stream(streams[1].1).expect("the stream is ours");
        let ledger = judge.ledger();
        if !ledger.is_empty() {
            return Err(format!("something is left: {ledger:?}"));
        }
        if let Some(violation) = check.violations().first() {
            return Err(format!("not ordered at the end: {violation:?}"));
        }
        let shared = shared.lock().expect("no kernel panics");
        tally.kernels += shared.kernels;
        tally.words_checked += shared.words_checked;
        tally.replays += shared.replays;
        tally.accesses_checked += check.accesses_checked();
        match shared.errors.first() {
            Some(error) => Err(format!("wrong bytes at the end: {error}")),
            None => Ok(tally),
        }
    }
}
