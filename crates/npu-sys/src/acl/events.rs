//! Events of both styles that the library has.
//!
//! An event of the newer style (`Ex`) may be recorded again at any time and destroyed at any
//! time. One of the older style may be neither before all waits for it are over, and there is a
//! limited number of them. So for those a driver's event changes: recording it again takes a
//! fresh one of the library's, and the last one is put aside until nobody waits for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::acl::current::Current;
use crate::acl::failure::invalid;
use crate::acl::streams::Stream;
use crate::acl::sys::{self, ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, aclrtEvent};
use crate::drop_failures;
use crate::error::{DriverError, ErrorKind};
use crate::sync::lock;
use crate::types::{EventHandle, EventKind};

/// The events of one driver.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Set when the library said that it cannot make events of the newer style.
    no_newer: AtomicBool,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    count_ever: u64,
    live: BTreeMap<u64, Arc<Event>>,
    /// Of the older style, and perhaps still waited for.
    aside: Vec<Arc<Raw>>,
    /// Of the older style, and done with: to be reset and recorded again.
    spare: Vec<Arc<Raw>>,
}

/// One event of the driver.
#[derive(Debug)]
struct Event {
    kind: EventKind,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    raw: Arc<Raw>,
    is_recorded: bool,
}

/// One event of the library.
#[derive(Debug)]
struct Raw {
    event: aclrtEvent,
    kind: EventKind,
    is_newer: bool,
    /// Whether a stream was made to wait for it.
    is_waited_for: AtomicBool,
    /// Whether it was recorded before and must be reset.
    is_used: AtomicBool,
}

impl Events {
    pub(super) fn create(
        &self,
        now: &Current<'_>,
        kind: EventKind,
    ) -> Result<EventHandle, DriverError> {
        let raw = self.raw(now, kind)?;
        let state = Mutex::new(State { raw, is_recorded: false });
        let mut tables = lock(&self.tables);
        tables.count_ever += 1;
        let handle = tables.count_ever;
        tables.live.insert(handle, Arc::new(Event { kind, state }));
        Ok(EventHandle(handle))
    }

    pub(super) fn destroy(&self, now: &Current<'_>, event: EventHandle) -> Result<(), DriverError> {
        let gone = lock(&self.tables).live.remove(&event.0);
        let Some(gone) = gone else { return Err(unknown(now, event)) };
        let raw = Arc::clone(&lock(&gone.state).raw);
        drop(gone);
        lock(&self.tables).aside.push(raw);
        self.sweep(now);
        Ok(())
    }

    pub(super) fn record(
        &self,
        now: &Current<'_>,
        event: EventHandle,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let event = self.get(now, event)?;
        let mut state = lock(&event.state);
        if state.is_recorded && !state.raw.is_newer {
            let fresh = self.raw(now, event.kind)?;
            record(now, &fresh, stream).inspect_err(|_| self.put_aside(Arc::clone(&fresh)))?;
            self.put_aside(std::mem::replace(&mut state.raw, fresh));
            return Ok(());
        }
        record(now, &state.raw, stream)?;
        state.is_recorded = true;
        Ok(())
    }

    pub(super) fn wait(
        &self,
        now: &Current<'_>,
        stream: &Stream,
        event: EventHandle,
    ) -> Result<(), DriverError> {
        let event = self.get(now, event)?;
        let state = lock(&event.state);
        // The library refuses to wait for an event that was never recorded.
        if !state.is_recorded {
            return Ok(());
        }
        state.raw.is_waited_for.store(true, Ordering::Relaxed);
        // SAFETY: both exist for as long as they are held here.
        let code = unsafe { (now.api.aclrtStreamWaitEvent)(stream.raw, state.raw.event) };
        now.check("aclrtStreamWaitEvent", code)
    }

    pub(super) fn query(&self, now: &Current<'_>, event: EventHandle) -> Result<bool, DriverError> {
        match self.recorded(now, event)? {
            Some(raw) => is_complete(now, &raw),
            None => Ok(true),
        }
    }

    pub(super) fn synchronize(
        &self,
        now: &Current<'_>,
        event: EventHandle,
    ) -> Result<(), DriverError> {
        let Some(raw) = self.recorded(now, event)? else { return Ok(()) };
        // SAFETY: the event exists for as long as it is held here.
        let code = unsafe { (now.api.aclrtSynchronizeEvent)(raw.event) };
        now.check("aclrtSynchronizeEvent", code)
    }

    pub(super) fn elapsed_us(
        &self,
        now: &Current<'_>,
        start: EventHandle,
        end: EventHandle,
    ) -> Result<f64, DriverError> {
        let [start, end] = [self.completed(now, start)?, self.completed(now, end)?];
        let ask = |start: &Raw, end: &Raw| {
            let mut ms = 0.0;
            // SAFETY: both exist for as long as they are held here; the library writes one number.
            let code = unsafe { (now.api.aclrtEventElapsedTime)(&mut ms, start.event, end.event) };
            (code, f64::from(ms) * 1000.0)
        };
        // The library has no times below 0.
        let (code, us) = match ask(&start, &end) {
            (ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, _) => {
                let (code, us) = ask(&end, &start);
                (code, -us)
            }
            forward => forward,
        };
        now.check("aclrtEventElapsedTime", code)?;
        Ok(us)
    }

    /// Destroys all events.
    ///
    /// # Safety
    /// No other call uses an event, now or later, and no stream waits for one.
    pub(super) unsafe fn destroy_all(&self, now: &Current<'_>) {
        let mut tables = lock(&self.tables);
        let live = std::mem::take(&mut tables.live);
        let raws = live.into_values().map(|event| Arc::clone(&lock(&event.state).raw));
        let raws: Vec<Arc<Raw>> = raws.collect();
        let aside = std::mem::take(&mut tables.aside);
        let spare = std::mem::take(&mut tables.spare);
        for raw in raws.into_iter().chain(aside).chain(spare) {
            // SAFETY: the caller's promise.
            unsafe { destroy(now, &raw) };
        }
    }

    fn get(&self, now: &Current<'_>, event: EventHandle) -> Result<Arc<Event>, DriverError> {
        let found = lock(&self.tables).live.get(&event.0).cloned();
        found.ok_or_else(|| unknown(now, event))
    }

    /// What the event stands for; `None` if it was never recorded.
    fn recorded(
        &self,
        now: &Current<'_>,
        event: EventHandle,
    ) -> Result<Option<Arc<Raw>>, DriverError> {
        let event = self.get(now, event)?;
        let state = lock(&event.state);
        Ok(state.is_recorded.then(|| Arc::clone(&state.raw)))
    }

    /// A timing event that is complete.
    fn completed(&self, now: &Current<'_>, event: EventHandle) -> Result<Arc<Raw>, DriverError> {
        let Some(raw) = self.recorded(now, event)? else {
            return Err(invalid(now.call, format!("{event:?} is not recorded")));
        };
        if raw.kind != EventKind::Timing {
            return Err(invalid(now.call, format!("{event:?} is not for timing")));
        }
        match is_complete(now, &raw)? {
            true => Ok(raw),
            false => Err(invalid(now.call, format!("{event:?} is not complete"))),
        }
    }

    /// An event of the library that has not been recorded, or can be again.
    fn raw(&self, now: &Current<'_>, kind: EventKind) -> Result<Arc<Raw>, DriverError> {
        self.sweep(now);
        {
            let spare = &mut lock(&self.tables).spare;
            if let Some(at) = spare.iter().position(|raw| raw.kind == kind) {
                return Ok(spare.swap_remove(at));
            }
        }
        let flags = match kind {
            EventKind::Order => sys::ACL_EVENT_SYNC,
            EventKind::Timing => sys::ACL_EVENT_SYNC | sys::ACL_EVENT_TIME_LINE,
        };
        let newer = now.api.aclrtCreateEventExWithFlag;
        let mut event = aclrtEvent::NULL;
        let mut is_newer = false;
        if let Some(create) = newer.filter(|_| !self.no_newer.load(Ordering::Relaxed)) {
            // SAFETY: the library writes one handle.
            let code = unsafe { create(&mut event, flags) };
            match now.check("aclrtCreateEventExWithFlag", code) {
                Ok(()) => is_newer = true,
                Err(error) if error.kind == ErrorKind::Unsupported => {
                    self.no_newer.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        if !is_newer {
            // SAFETY: the library writes one handle.
            let code = unsafe { (now.api.aclrtCreateEventWithFlag)(&mut event, flags) };
            now.check("aclrtCreateEventWithFlag", code)?;
        }
        let [is_waited_for, is_used] = [AtomicBool::new(false), AtomicBool::new(false)];
        Ok(Arc::new(Raw { event, kind, is_newer, is_waited_for, is_used }))
    }

    fn put_aside(&self, raw: Arc<Raw>) {
        lock(&self.tables).aside.push(raw);
    }

    /// Looks after what was put aside: events of the newer style go, those of the older are
    /// kept for use once nobody waits for them.
    fn sweep(&self, now: &Current<'_>) {
        let mut tables = lock(&self.tables);
        let aside = std::mem::take(&mut tables.aside);
        for raw in aside {
            if Arc::strong_count(&raw) > 1 {
                // A call on another thread still holds it.
                tables.aside.push(raw);
            } else if raw.is_newer {
                // SAFETY: just seen to be held by nobody else; waits for it may go on.
                unsafe { destroy(now, &raw) };
            } else if is_done_with(now, &raw) {
                tables.spare.push(raw);
            } else {
                tables.aside.push(raw);
            }
        }
    }
}

fn unknown(now: &Current<'_>, event: EventHandle) -> DriverError {
    invalid(now.call, format!("{event:?} does not exist"))
}

fn record(now: &Current<'_>, raw: &Raw, stream: &Stream) -> Result<(), DriverError> {
    if !raw.is_newer && raw.is_used.load(Ordering::Relaxed) {
        // SAFETY: both exist for as long as they are held here, and nothing waits for the event.
        let code = unsafe { (now.api.aclrtResetEvent)(raw.event, stream.raw) };
        now.check("aclrtResetEvent", code)?;
        raw.is_waited_for.store(false, Ordering::Relaxed);
    }
    // SAFETY: both exist for as long as they are held here.
    let code = unsafe { (now.api.aclrtRecordEvent)(raw.event, stream.raw) };
    now.check("aclrtRecordEvent", code)?;
    raw.is_used.store(true, Ordering::Relaxed);
    Ok(())
}

fn is_complete(now: &Current<'_>, raw: &Raw) -> Result<bool, DriverError> {
    // Of the two queries that the library has, the one that counts upwards.
    let mut status = 0;
    // SAFETY: the event exists for as long as it is held here; the library writes one number.
    let code = unsafe { (now.api.aclrtQueryEventStatus)(raw.event, &mut status) };
    now.check("aclrtQueryEventStatus", code)?;
    Ok(status == sys::ACL_EVENT_RECORDED_STATUS_COMPLETE)
}

/// Whether an event of the older style has come, and all waits for it are over.
fn is_done_with(now: &Current<'_>, raw: &Raw) -> bool {
    if !raw.is_used.load(Ordering::Relaxed) {
        return true;
    }
    if !is_complete(now, raw).unwrap_or(false) {
        return false;
    }
    if !raw.is_waited_for.load(Ordering::Relaxed) {
        return true;
    }
    let mut status = !sys::ACL_EVENT_WAIT_STATUS_COMPLETE;
    // SAFETY: the event exists for as long as it is held here; the library writes one number.
    let code = unsafe { (now.api.aclrtQueryEventWaitStatus)(raw.event, &mut status) };
    code == sys::ACL_SUCCESS && status == sys::ACL_EVENT_WAIT_STATUS_COMPLETE
}

/// Destroys an event that is done with. A failure costs no more than the event.
///
/// # Safety
/// No call holds the event, and none finds it any more. If it is of the older style, nobody waits
/// for it.
unsafe fn destroy(now: &Current<'_>, raw: &Raw) {
    // SAFETY: the caller's promise.
    let code = unsafe { (now.api.aclrtDestroyEvent)(raw.event) };
    drop_failures::note(now.check("aclrtDestroyEvent", code));
}
