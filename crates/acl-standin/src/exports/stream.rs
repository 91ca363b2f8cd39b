//! Streams.

use std::sync::mpsc;
use std::time::Duration;

use npu_sys::devices::Mode;
use npu_sys::{Driver, EventKind, HostFunction, StreamHandle};

use crate::abi::{Opaque, Out, address, pointer};
use crate::entry::exports;
use crate::failure::{
    Outcome, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, RT_STREAM_SYNC_TIMEOUT, refuse,
};
use crate::runtime::{self, Scope};
use crate::tables::{Stream, Token, token};

const PRIORITY_MAX: u32 = 7;
/// FAST_LAUNCH, FAST_SYNC, PERSISTENT, HUGE.
const FLAGS_KNOWN: u32 = 0xF;
const STATUS_COMPLETE: i32 = 0;
const STATUS_NOT_READY: i32 = 1;
/// A wait without end.
pub(super) const FOREVER: i32 = -1;

fn create(out: Out<Opaque>) -> Outcome {
    out.check("stream")?;
    let scope = runtime::enter()?;
    let mut tables = scope.tables();
    let handle = scope.driver().create_stream()?;
    let token = token();
    tables.streams.insert(token, Stream::new(scope.device, scope.context, handle));
    out.put(pointer(token as u64));
    Ok(())
}

fn destroy(stream: Opaque) -> Outcome {
    let scope = runtime::enter()?;
    let mut tables = scope.tables();
    let shown = address(stream);
    if shown == 0 {
        return refuse(RT_PARAM_INVALID, "the default stream cannot be destroyed");
    }
    let token = tables.stream_token(&scope, shown as Token)?;
    let Stream { handle, submitted, seen, subscriber, .. } = tables.streams[&token];
    if seen < submitted {
        let text = format!(
            "stream {shown:#x} has work that the host has not seen complete: synchronize first"
        );
        return refuse(RT_PARAM_INVALID, text);
    }
    if subscriber.is_some() {
        let text = format!("stream {shown:#x} still has a thread for its callbacks");
        return refuse(RT_PARAM_INVALID, text);
    }
    scope.driver().destroy_stream(handle)?;
    tables.streams.remove(&token);
    Ok(())
}

/// Waits for all work of a stream.
pub(super) fn synchronize(scope: &Scope, token: Token) -> Outcome {
    let stream = scope.tables().streams.get(&token).map(|found| (found.handle, found.submitted));
    let Some((handle, submitted)) = stream else {
        return refuse(RT_PARAM_INVALID, "the stream was destroyed on another thread");
    };
    scope.driver().synchronize_stream(handle)?;
    scope.tables().see(token, submitted);
    scope.runtime.tell_failure(scope.device)
}

/// Waits until a stream comes this far, at most for a time. Says whether it did.
pub(super) fn reached(scope: &Scope, stream: StreamHandle, timeout_ms: i32) -> Outcome<bool> {
    let is_virtual = scope.driver().config().mode != Mode::Threads;
    let Ok(limit_ms) = u64::try_from(timeout_ms) else {
        let text = format!("a timeout of {timeout_ms} ms");
        return refuse(RT_PARAM_INVALID, text);
    };
    // On a virtual clock nothing happens while the host waits by its own.
    if is_virtual {
        scope.driver().synchronize_stream(stream)?;
        return Ok(true);
    }
    let (arrived, arrival) = mpsc::channel();
    let function = HostFunction {
        name: "arrive",
        accesses: Vec::new(),
        cost_us: 0.0,
        // Nobody listens after the time is over.
        body: Box::new(move |_| arrived.send(()).unwrap_or_default()),
    };
    // SAFETY: the function declares no accesses.
    unsafe { scope.driver().launch_host(function, stream) }?;
    Ok(arrival.recv_timeout(Duration::from_millis(limit_ms)).is_ok())
}

exports! {
    /// Creates a stream.
    fn aclrtCreateStream(stream: Out<Opaque>) {
        create(stream)
    }

    /// Creates a stream with a priority, which changes nothing here.
    fn aclrtCreateStreamWithConfig(stream: Out<Opaque>, priority: u32, flags: u32) {
        if priority > PRIORITY_MAX {
            return refuse(RT_PARAM_INVALID, format!("priority {priority} is not in 0..=7"));
        }
        if flags & !FLAGS_KNOWN != 0 {
            return refuse(RT_FEATURE_NOT_SUPPORT, format!("a stream with flags {flags:#x}"));
        }
        create(stream)
    }

    /// Destroys a stream, all of whose work the host has seen complete.
    fn aclrtDestroyStream(stream: Opaque) {
        destroy(stream)
    }

    /// Destroys a stream. A device would drop its work, so that is refused here too.
    fn aclrtDestroyStreamForce(stream: Opaque) {
        destroy(stream)
    }

    /// Waits for all work of a stream.
    fn aclrtSynchronizeStream(stream: Opaque) {
        let scope = runtime::enter()?;
        let token = scope.tables().stream_token(&scope, address(stream) as Token)?;
        synchronize(&scope, token)
    }

    /// Waits for all work of a stream, at most for a time.
    fn aclrtSynchronizeStreamWithTimeout(stream: Opaque, timeout_ms: i32) {
        let scope = runtime::enter()?;
        let tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let handle = tables.streams[&token].handle;
        drop(tables);
        if timeout_ms != FOREVER && !reached(&scope, handle, timeout_ms)? {
            return refuse(RT_STREAM_SYNC_TIMEOUT, format!("not complete in {timeout_ms} ms"));
        }
        synchronize(&scope, token)
    }

    /// Whether all work of a stream is complete.
    fn aclrtStreamQuery(stream: Opaque, status: Out<i32>) {
        status.check("status")?;
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let Stream { handle, submitted, .. } = tables.streams[&token];
        let driver = scope.driver();
        let mark = driver.create_event(EventKind::Order)?;
        let complete = driver.record_event(mark, handle).and_then(|()| driver.query_event(mark));
        driver.destroy_event(mark)?;
        if complete? {
            tables.see(token, submitted);
            status.put(STATUS_COMPLETE);
        } else {
            status.put(STATUS_NOT_READY);
        }
        Ok(())
    }

    /// What a stream does after a failed task.
    fn aclrtSetStreamFailureMode(stream: Opaque, mode: u64) {
        let scope = runtime::enter()?;
        scope.tables().stream_token(&scope, address(stream) as Token)?;
        match mode {
            0 | 1 => Ok(()),
            _ => refuse(RT_PARAM_INVALID, format!("mode {mode} is not 0 or 1")),
        }
    }

    /// The number of a stream.
    fn aclrtStreamGetId(stream: Opaque, id: Out<i32>) {
        id.check("streamId")?;
        let scope = runtime::enter()?;
        let tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        id.put(tables.streams[&token].handle.0 as i32);
        Ok(())
    }
}
