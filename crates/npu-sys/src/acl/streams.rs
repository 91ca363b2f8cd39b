//! Streams, and those that are given up while work of theirs still runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::acl::current::Current;
use crate::acl::failure::invalid;
use crate::acl::reports::Reports;
use crate::acl::sys::{self, aclrtStream};
use crate::acl::within;
use crate::drop_failures;
use crate::error::DriverError;
use crate::sync::lock;
use crate::types::StreamHandle;

/// One stream of the library.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) raw: aclrtStream,
    /// Somebody else's: it is not destroyed here.
    is_borrowed: bool,
    /// Set when a thread runs the stream's callbacks.
    pub(super) reports: OnceLock<()>,
    /// Pinned memory for copies that take a detour through the host, once one did.
    pub(super) buffer: Mutex<Option<u64>>,
}

impl Stream {
    fn new(raw: aclrtStream, is_borrowed: bool) -> Stream {
        Stream { raw, is_borrowed, reports: OnceLock::new(), buffer: Mutex::new(None) }
    }
}

/// The streams of one driver.
///
/// A call holds its stream by `Arc`, so one that another thread destroys meanwhile stays good
/// until the call is over.
#[derive(Debug, Default)]
pub(super) struct Streams {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    count_ever: u64,
    live: BTreeMap<u64, Arc<Stream>>,
    /// Destroyed by the caller; their work still runs. The library wants a stream to be idle
    /// before it is destroyed, and the caller must not wait.
    leaving: Vec<Arc<Stream>>,
}

impl Streams {
    pub(super) fn create(
        &self,
        now: &Current<'_>,
        reports: &Reports,
    ) -> Result<StreamHandle, DriverError> {
        self.sweep(now, reports);
        let mut raw = aclrtStream::NULL;
        let flags = sys::ACL_STREAM_FAST_LAUNCH | sys::ACL_STREAM_FAST_SYNC;
        // SAFETY: the library writes one handle.
        let code = unsafe { (now.api.aclrtCreateStreamWithConfig)(&mut raw, 0, flags) };
        now.check("aclrtCreateStreamWithConfig", code)?;
        let mut tables = lock(&self.tables);
        tables.count_ever += 1;
        let handle = tables.count_ever;
        tables.live.insert(handle, Arc::new(Stream::new(raw, false)));
        Ok(StreamHandle(handle))
    }

    /// Takes in a stream of another library. One that is known already keeps its handle.
    ///
    /// # Safety
    /// The stream lives until it is destroyed here.
    pub(super) unsafe fn adopt(&self, raw: aclrtStream) -> StreamHandle {
        let mut tables = lock(&self.tables);
        if let Some((&handle, _)) = tables.live.iter().find(|(_, stream)| stream.raw == raw) {
            return StreamHandle(handle);
        }
        tables.count_ever += 1;
        let handle = tables.count_ever;
        tables.live.insert(handle, Arc::new(Stream::new(raw, true)));
        StreamHandle(handle)
    }

    pub(super) fn get(
        &self,
        now: &Current<'_>,
        stream: StreamHandle,
    ) -> Result<Arc<Stream>, DriverError> {
        let found = lock(&self.tables).live.get(&stream.0).cloned();
        found.ok_or_else(|| invalid(now.call, format!("{stream:?} does not exist")))
    }

    pub(super) fn destroy(
        &self,
        now: &Current<'_>,
        stream: StreamHandle,
        reports: &Reports,
    ) -> Result<(), DriverError> {
        {
            let mut tables = lock(&self.tables);
            let Some(gone) = tables.live.remove(&stream.0) else {
                return Err(invalid(now.call, format!("{stream:?} does not exist")));
            };
            tables.leaving.push(gone);
        }
        self.sweep(now, reports);
        Ok(())
    }

    pub(super) fn synchronize(
        &self,
        now: &Current<'_>,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let stream = self.get(now, stream)?;
        synchronize(now, &stream)
    }

    /// Destroys the leaving streams that have become idle and that no call holds.
    fn sweep(&self, now: &Current<'_>, reports: &Reports) {
        let mut tables = lock(&self.tables);
        tables.leaving.retain(|stream| {
            let stays = Arc::strong_count(stream) > 1 || !is_idle(now, stream);
            if !stays {
                // SAFETY: idle, and just seen to be held by nobody else.
                unsafe { destroy(now, stream, reports) };
            }
            stays
        });
    }

    /// Waits for all streams and destroys them.
    ///
    /// # Safety
    /// No other call uses a stream, now or later.
    pub(super) unsafe fn destroy_all(&self, now: &Current<'_>, reports: &Reports) {
        let mut tables = lock(&self.tables);
        let live = std::mem::take(&mut tables.live);
        let leaving = std::mem::take(&mut tables.leaving);
        let all: Vec<Arc<Stream>> = live.into_values().chain(leaving).collect();
        // All first: one stream may wait for an event of another.
        for stream in &all {
            // A stream that fails has ended as well.
            drop_failures::note(synchronize(now, stream));
        }
        for stream in &all {
            // SAFETY: idle since the wait, out of the tables, and the caller promises the rest.
            unsafe { destroy(now, stream, reports) };
        }
    }
}

fn synchronize(now: &Current<'_>, stream: &Stream) -> Result<(), DriverError> {
    // SAFETY: the stream exists for as long as somebody holds it.
    let code = unsafe { (now.api.aclrtSynchronizeStream)(stream.raw) };
    now.check("aclrtSynchronizeStream", code)
}

/// Whether a stream has no work left. One that cannot be asked has failed and does none.
fn is_idle(now: &Current<'_>, stream: &Stream) -> bool {
    let mut status = sys::ACL_STREAM_STATUS_COMPLETE;
    // SAFETY: the stream exists; the library writes one number.
    let code = unsafe { (now.api.aclrtStreamQuery)(stream.raw, &mut status) };
    code != sys::ACL_SUCCESS || status == sys::ACL_STREAM_STATUS_COMPLETE
}

/// Destroys a stream. A failure costs no more than the stream: its owner gave it up.
///
/// # Safety
/// It is idle, in no table, and no call holds it.
unsafe fn destroy(now: &Current<'_>, stream: &Stream, reports: &Reports) {
    if stream.reports.get().is_some() {
        // SAFETY: the stream is still there.
        unsafe { reports.unsubscribe(now, stream.raw) };
    }
    if !stream.is_borrowed {
        // SAFETY: the caller's promise.
        let code = unsafe { (now.api.aclrtDestroyStream)(stream.raw) };
        drop_failures::note(now.check("aclrtDestroyStream", code));
    }
    // SAFETY: the caller's promise.
    unsafe { within::free_buffer(now, stream) };
}
