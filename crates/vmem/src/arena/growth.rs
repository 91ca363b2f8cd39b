//! The next region, pinned on a thread before it is needed.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use npu_sys::Driver;

use super::region::{PinError, Pinning, Region};

/// A region on its way.
#[derive(Debug)]
pub(super) struct Growth {
    size_bytes: u64,
    thread: JoinHandle<Result<Region, PinError>>,
}

impl Growth {
    /// Starts to pin `size_bytes`. `None` if the system gives no thread.
    pub(super) fn start(
        driver: &Arc<dyn Driver>,
        size_bytes: u64,
        pinning: Pinning,
    ) -> Option<Growth> {
        let driver = Arc::clone(driver);
        let pin = move || Region::pin(&*driver, size_bytes, pinning);
        let thread = thread::Builder::new().name("host-arena".to_owned()).spawn(pin).ok()?;
        Some(Growth { size_bytes, thread })
    }

    /// What it will add, which counts against the cap already.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Whether [`finish`](Growth::finish) will not wait.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// The region, if there was memory for it. Nobody asked for it yet, so nobody is told why
    /// not: whoever needs it will try again and see for himself.
    pub(super) fn finish(self) -> Option<Region> {
        self.thread.join().ok()?.ok()
    }
}
