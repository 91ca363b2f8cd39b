//! What is recorded and measured of steps: the running one, and those whose report is owed.

use std::collections::VecDeque;

use vmem::EventHandle;

use crate::lanes::LaneRecorder;
use crate::recorder::Recorder;
use crate::step::PendingReport;

/// Recorders of the running step, and reports of finished ones.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    recorder: Option<Recorder>,
    /// Whether steps that begin are recorded.
    records: bool,
    /// Set while the running step is measured, which is not recorded then.
    lanes: Option<LaneRecorder>,
    /// Oldest first.
    reports: VecDeque<PendingReport>,
    /// Reports name the copies of their step.
    pub(crate) logs_moves: bool,
}

impl Recording {
    pub(crate) fn new(records: bool) -> Recording {
        Recording { recorder: records.then(Recorder::default), records, ..Recording::default() }
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        self.recorder = self.records.then(Recorder::default);
    }

    /// What was recorded and measured of the step that ends.
    pub(crate) fn end_step(&mut self) -> (Option<Recorder>, Option<LaneRecorder>) {
        (self.recorder.take(), self.lanes.take())
    }

    /// Whether steps that begin are recorded. Returns whether that changes the running one.
    pub(crate) fn set(&mut self, records: bool) -> bool {
        self.records = records;
        records != self.recorder.is_some()
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub(crate) fn recorder_mut(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_mut()
    }

    pub(crate) fn lanes(&self) -> Option<&LaneRecorder> {
        self.lanes.as_ref()
    }

    pub(crate) fn lanes_mut(&mut self) -> Option<&mut LaneRecorder> {
        self.lanes.as_mut()
    }

    /// Measures the running step from here on. Returns whether it can: no recorded one can.
    pub(crate) fn measure(&mut self) -> bool {
        let can = self.recorder.is_none();
        if can {
            self.lanes.get_or_insert_default();
        }
        can
    }

    /// Gives up measuring the running step. Returns its timers.
    pub(crate) fn stop_measuring(&mut self) -> impl Iterator<Item = EventHandle> + use<> {
        self.lanes.take().into_iter().flat_map(LaneRecorder::into_timers)
    }

    /// A report that is owed.
    pub(crate) fn owe(&mut self, pending: PendingReport) {
        self.reports.push_back(pending);
    }

    pub(crate) fn oldest_owed(&self) -> Option<&PendingReport> {
        self.reports.front()
    }

    /// Whether a step was recorded whose report is owed.
    pub(crate) fn owes_trace(&self) -> bool {
        self.reports.iter().any(PendingReport::is_recorded)
    }

    /// The oldest report is not owed any more.
    pub(crate) fn pop_oldest(&mut self) -> Option<PendingReport> {
        self.reports.pop_front()
    }

    /// The timers of all steps.
    pub(crate) fn into_timers(self) -> impl Iterator<Item = EventHandle> {
        let running = self.recorder.into_iter().flat_map(Recorder::into_timers);
        let measured = self.lanes.into_iter().flat_map(LaneRecorder::into_timers);
        let owed = self.reports.into_iter().flat_map(PendingReport::into_timers);
        running.chain(measured).chain(owed)
    }
}
