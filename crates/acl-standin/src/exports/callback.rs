//! Host functions in stream order: the new way, and the old one with a thread of the caller's.

use std::collections::VecDeque;
use std::ffi::c_ulong;
use std::sync::{Arc, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use npu_sys::devices::Mode;
use npu_sys::{Driver, HostFunction};

use crate::abi::{Function, Opaque, address, pointer};
use crate::entry::{self, exports};
use crate::failure::{
    Failure, INVALID_PARAM, Outcome, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID, RT_WAIT_TIMEOUT,
    refuse,
};
use crate::runtime::{self, Scope};
use crate::tables::{Mailbox, Report, Token};

const NO_BLOCK: i32 = 0;
const BLOCK: i32 = 1;

unsafe extern "C" {
    safe fn pthread_self() -> c_ulong;
}

fn given(function: Function) -> Outcome<unsafe extern "C" fn(Opaque)> {
    function.ok_or_else(|| Failure::new(INVALID_PARAM, "the function is null"))
}

fn reports(mailbox: &Mailbox) -> MutexGuard<'_, VecDeque<Report>> {
    mailbox.reports.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a function to a stream.
fn launch(
    scope: &Scope,
    stream: Opaque,
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Outcome {
    let mut tables = scope.tables();
    let token = tables.stream_token(scope, address(stream) as Token)?;
    let function =
        HostFunction { name, accesses: Vec::new(), cost_us: 0.0, body: Box::new(move |_| body()) };
    // SAFETY: the function declares no accesses.
    tables.submit(token, |stream| unsafe { scope.driver().launch_host(function, stream) })
}

exports! {
    /// Runs a function in stream order.
    fn aclrtLaunchHostFunc(stream: Opaque, function: Function, argument: Opaque) {
        let scope = runtime::enter()?;
        let function = given(function)?;
        let argument = address(argument);
        launch(&scope, stream, "host function", move || {
            // SAFETY: the caller gives the argument with the function, and keeps it for it.
            entry::as_function(|| unsafe { function(pointer(argument)) });
        })
    }

    /// Runs a function in stream order, on the thread that subscribed to the stream.
    fn aclrtLaunchCallback(function: Function, argument: Opaque, block: i32, stream: Opaque) {
        let scope = runtime::enter()?;
        let function = given(function)?;
        let mailbox = {
            let tables = scope.tables();
            let token = tables.stream_token(&scope, address(stream) as Token)?;
            let subscriber = tables.streams[&token].subscriber;
            subscriber.and_then(|thread| tables.mailboxes.get(&thread).map(Arc::clone))
        };
        let Some(mailbox) = mailbox else {
            let text = "no thread runs the stream's callbacks: call aclrtSubscribeReport";
            return refuse(RT_PARAM_INVALID, text);
        };
        let is_virtual = scope.driver().config().mode != Mode::Threads;
        let (done, over) = match block {
            NO_BLOCK => (None, None),
            BLOCK if is_virtual => {
                return refuse(RT_FEATURE_NOT_SUPPORT, "a callback that blocks, in lockstep");
            }
            BLOCK => {
                let (done, over) = mpsc::channel();
                (Some(done), Some(over))
            }
            _ => return refuse(RT_PARAM_INVALID, format!("block type {block} is not 0 or 1")),
        };
        let report = Report { function, argument: address(argument), done };
        launch(&scope, stream, "callback", move || {
            reports(&mailbox).push_back(report);
            mailbox.arrival.notify_all();
            drop(mailbox);
            if let Some(over) = over {
                // An error says that the report was dropped: that ends it as well.
                over.recv().unwrap_or_default();
            }
        })
    }

    /// Lets a thread run the callbacks of a stream.
    fn aclrtSubscribeReport(thread: u64, stream: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let found = tables.streams.get_mut(&token).expect("checked by `stream_token`");
        if found.subscriber.is_some() {
            return refuse(RT_PARAM_INVALID, "the stream has a thread for its callbacks already");
        }
        found.subscriber = Some(thread);
        tables.mailboxes.entry(thread).or_default();
        Ok(())
    }

    /// Waits for one callback of this thread's streams and runs it.
    fn aclrtProcessReport(timeout_ms: i32) {
        let runtime = runtime::runtime()?;
        let thread = pthread_self();
        let mailbox = runtime.tables().mailboxes.get(&thread).map(Arc::clone);
        let Some(mailbox) = mailbox else {
            return refuse(RT_PARAM_INVALID, "this thread is subscribed to no stream");
        };
        let limit = match timeout_ms {
            super::stream::FOREVER => Duration::MAX,
            _ => Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0)),
        };
        let waiting = reports(&mailbox);
        let waited = mailbox.arrival.wait_timeout_while(waiting, limit, |queue| queue.is_empty());
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(report) = queue.pop_front() else {
            return refuse(RT_WAIT_TIMEOUT, format!("no callback in {timeout_ms} ms"));
        };
        drop(queue);
        // SAFETY: the caller gave the argument with the function, and keeps it for it.
        unsafe { (report.function)(pointer(report.argument)) };
        drop(report.done);
        Ok(())
    }

    /// Ends a subscription.
    fn aclrtUnSubscribeReport(thread: u64, stream: Opaque) {
        let scope = runtime::enter()?;
        let mut tables = scope.tables();
        let token = tables.stream_token(&scope, address(stream) as Token)?;
        let found = tables.streams.get_mut(&token).expect("checked by `stream_token`");
        if found.subscriber != Some(thread) {
            return refuse(RT_PARAM_INVALID, "the thread is not subscribed to the stream");
        }
        found.subscriber = None;
        if !tables.streams.values().any(|stream| stream.subscriber == Some(thread)) {
            tables.mailboxes.remove(&thread);
        }
        Ok(())
    }
}
