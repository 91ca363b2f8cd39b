//! Events, old style and Ex.

use npu_sys::{Driver, EventKind};

use crate::abi::{
    EVENT_CAPTURE_STREAM_PROGRESS, EVENT_SYNC, EVENT_TIME_LINE, Opaque, Out, address, pointer,
};
use crate::entry::exports;
use crate::exports::stream::{FOREVER, reached};
use crate::failure::{
    Outcome, RT_EVENT_SYNC_TIMEOUT, RT_EVENT_TIMESTAMP_INVALID, RT_EVENT_TIMESTAMP_REVERSAL,
    RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, refuse,
};
use crate::runtime::{self, Scope};
use crate::tables::{Event, Tables, Token, Wait, token};

const FLAGS_KNOWN: u32 = EVENT_SYNC | EVENT_CAPTURE_STREAM_PROGRESS | EVENT_TIME_LINE;
// `aclrtQueryEventStatus` counts the other way round than the other two queries.
const RECORDED_NOT_READY: i32 = 0;
const RECORDED_COMPLETE: i32 = 1;
const EVENT_COMPLETE: i32 = 0;
const EVENT_NOT_READY: i32 = 1;
const WAIT_COMPLETE: i32 = 0;
const WAIT_NOT_READY: i32 = 1;

fn create(out: Out<Opaque>, flags: u32, is_ex: bool) -> Outcome {
    out.check("event")?;
    let scope = runtime::enter()?;
    if flags == 0 {
        return refuse(RT_PARAM_INVALID, "an event with flags 0");
    }
    if flags & !FLAGS_KNOWN != 0 {
        return refuse(RT_FEATURE_NOT_SUPPORT, format!("an event with flags {flags:#x}"));
    }
    let is_timing = flags & EVENT_TIME_LINE != 0;
    let kind = if is_timing { EventKind::Timing } else { EventKind::Order };
    let mut tables = scope.tables();
    let handle = scope.driver().create_event(kind)?;
    let token = token();
    let event = Event {
        device: scope.device,
        context: scope.context,
        handle,
        is_ex,
        flags,
        recorded: None,
        waits: Vec::new(),
    };
    tables.events.insert(token, event);
    out.put(pointer(token as u64));
    Ok(())
}

/// Makes a stream wait for an event.
fn wait(scope: &Scope, stream: Opaque, event: Opaque) -> Outcome {
    let mut tables = scope.tables();
    let stream = tables.stream_token(scope, address(stream) as Token)?;
    let token = address(event) as Token;
    let Event { handle, is_ex, flags, recorded, .. } = *tables.event(scope, token)?;
    if flags & EVENT_SYNC == 0 {
        return refuse(RT_PARAM_INVALID, format!("event {token:#x} is without the flag SYNC"));
    }
    if recorded.is_none() {
        return refuse(RT_PARAM_INVALID, format!("event {token:#x} is not recorded"));
    }
    let driver = scope.driver();
    tables.submit(stream, |stream| driver.wait_event(stream, handle))?;
    if !is_ex {
        let mark = driver.create_event(EventKind::Order)?;
        tables.devices[scope.device].marks += 1;
        tables.event(scope, token)?.waits.push(Wait { stream, mark });
        driver.record_event(mark, tables.streams[&stream].handle)?;
    }
    Ok(())
}

/// Whether what a recorded event stands for is complete.
fn query(scope: &Scope, event: Opaque) -> Outcome<bool> {
    let mut tables = scope.tables();
    let token = address(event) as Token;
    let Event { handle, recorded, .. } = *tables.event(scope, token)?;
    if recorded.is_none() || !scope.driver().query_event(handle)? {
        return Ok(false);
    }
    tables.see_event(token);
    Ok(true)
}

/// What an event stands for: it must be recorded.
fn recorded(tables: &mut Tables, scope: &Scope, event: Opaque) -> Outcome<npu_sys::EventHandle> {
    let token = address(event) as Token;
    let Event { handle, recorded, .. } = *tables.event(scope, token)?;
    match recorded {
        Some(_) => Ok(handle),
        None => refuse(RT_PARAM_INVALID, format!("event {token:#x} is not recorded")),
    }
}

/// Blocks the host until an event is complete.
fn synchronize(scope: &Scope, event: Opaque) -> Outcome {
    let token = address(event) as Token;
    let handle = recorded(&mut scope.tables(), scope, event)?;
    let before = scope.tables().event(scope, token)?.recorded;
    scope.driver().synchronize_event(handle)?;
    if let Some((stream, count)) = before {
        scope.tables().see(stream, count);
    }
    Ok(())
}

/// An event for timing that is complete.
fn timed(scope: &Scope, event: Opaque) -> Outcome<npu_sys::EventHandle> {
    let mut tables = scope.tables();
    let token = address(event) as Token;
    let Event { handle, flags, recorded, .. } = *tables.event(scope, token)?;
    let why = if flags & EVENT_TIME_LINE == 0 {
        "is without the flag TIME_LINE"
    } else if recorded.is_none() {
        "is not recorded"
    } else if !scope.driver().query_event(handle)? {
        "is not complete"
    } else {
        return Ok(handle);
    };
    refuse(RT_EVENT_TIMESTAMP_INVALID, format!("event {token:#x} {why}"))
}

exports! {
    /// Creates an old-style event for order.
    fn aclrtCreateEvent(event: Out<Opaque>) {
        create(event, EVENT_SYNC, false)
    }

    /// Creates an old-style event.
    fn aclrtCreateEventWithFlag(event: Out<Opaque>, flags: u32) {
        create(event, flags, false)
    }

    /// Creates an event that can be recorded again and again.
    fn aclrtCreateEventExWithFlag(event: Out<Opaque>, flags: u32) {
        create(event, flags, true)
    }

    /// Destroys an event. Waits for an old-style one must be complete.
    fn aclrtDestroyEvent(event: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = address(event) as Token;
        let handle = tables.event(&scope, token)?.handle;
        let under_way = tables.waits_under_way(&scope, token, None)?;
        if under_way > 0 {
            let text = format!("{under_way} waits for event {token:#x} are not complete");
            return refuse(RT_PARAM_INVALID, text);
        }
        tables.forget_waits(&scope, token)?;
        scope.driver().destroy_event(handle)?;
        tables.events.remove(&token);
        Ok(())
    }

    /// Makes an event stand for all work submitted to a stream so far.
    fn aclrtRecordEvent(event: Opaque, stream: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let stream = tables.stream_token(&scope, address(stream) as Token)?;
        let token = address(event) as Token;
        let Event { handle, is_ex, ref waits, .. } = *tables.event(&scope, token)?;
        if !is_ex && !waits.is_empty() {
            let text = format!("event {token:#x} was waited for: reset it before recording again");
            return refuse(RT_PARAM_INVALID, text);
        }
        let found = &tables.streams[&stream];
        scope.driver().record_event(handle, found.handle)?;
        let recorded = Some((stream, found.submitted));
        tables.event(&scope, token)?.recorded = recorded;
        Ok(())
    }

    /// Makes an old-style event as new, behind all waits for it.
    fn aclrtResetEvent(event: Opaque, stream: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let stream = tables.stream_token(&scope, address(stream) as Token)?;
        let token = address(event) as Token;
        if tables.event(&scope, token)?.is_ex {
            return refuse(RT_PARAM_INVALID, format!("event {token:#x} is an Ex event"));
        }
        let under_way = tables.waits_under_way(&scope, token, Some(stream))?;
        if under_way > 0 {
            let text = format!("{under_way} waits for event {token:#x} are not complete");
            return refuse(RT_PARAM_INVALID, text);
        }
        tables.forget_waits(&scope, token)?;
        tables.event(&scope, token)?.recorded = None;
        Ok(())
    }

    /// Makes later work of a stream wait for an event, which must be recorded.
    fn aclrtStreamWaitEvent(stream: Opaque, event: Opaque) {
        wait(&runtime::enter()?, stream, event)
    }

    /// Whether an event is complete: 1, or 0 if not or never recorded.
    fn aclrtQueryEventStatus(event: Opaque, status: Out<i32>) {
        status.check("status")?;
        let is_complete = query(&runtime::enter()?, event)?;
        status.put(if is_complete { RECORDED_COMPLETE } else { RECORDED_NOT_READY });
        Ok(())
    }

    /// Whether an event is complete: 0, or 1 if not or never recorded.
    fn aclrtQueryEvent(event: Opaque, status: Out<i32>) {
        status.check("status")?;
        let is_complete = query(&runtime::enter()?, event)?;
        status.put(if is_complete { EVENT_COMPLETE } else { EVENT_NOT_READY });
        Ok(())
    }

    /// Whether all waits for an old-style event are complete: 0, or 1 if not.
    fn aclrtQueryEventWaitStatus(event: Opaque, status: Out<i32>) {
        status.check("status")?;
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = address(event) as Token;
        if tables.event(&scope, token)?.is_ex {
            return refuse(RT_PARAM_INVALID, format!("event {token:#x} is an Ex event"));
        }
        let is_complete = tables.waits_under_way(&scope, token, None)? == 0;
        status.put(if is_complete { WAIT_COMPLETE } else { WAIT_NOT_READY });
        Ok(())
    }

    /// Blocks the host until an event is complete.
    fn aclrtSynchronizeEvent(event: Opaque) {
        synchronize(&runtime::enter()?, event)
    }

    /// Blocks the host until an event is complete, at most for a time.
    fn aclrtSynchronizeEventWithTimeout(event: Opaque, timeout_ms: i32) {
        let scope = runtime::enter()?;
        if timeout_ms != FOREVER {
            let handle = recorded(&mut scope.tables(), &scope, event)?;
            let driver = scope.driver();
            let watcher = driver.create_stream()?;
            driver.wait_event(watcher, handle)?;
            let arrived = reached(&scope, watcher, timeout_ms);
            driver.destroy_stream(watcher)?;
            if !arrived? {
                return refuse(RT_EVENT_SYNC_TIMEOUT, format!("not complete in {timeout_ms} ms"));
            }
        }
        synchronize(&scope, event)
    }

    /// Milliseconds from one event to another, both for timing and complete.
    fn aclrtEventElapsedTime(ms: Out<f32>, start: Opaque, end: Opaque) {
        ms.check("ms")?;
        let scope = runtime::enter()?;
        let (start, end) = (timed(&scope, start)?, timed(&scope, end)?);
        let elapsed_us = scope.driver().elapsed_us(start, end)?;
        if elapsed_us < 0.0 {
            return refuse(RT_EVENT_TIMESTAMP_REVERSAL, "the end is before the start");
        }
        ms.put((elapsed_us / 1000.0) as f32);
        Ok(())
    }
}
