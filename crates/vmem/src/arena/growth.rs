//! The next region, made ready on a thread before it is needed.
//!
//! The thread touches its pages, which takes long and is in nobody's way. The driver is told of
//! them by whoever needs the region, as that holds up all other calls: one that nobody comes to
//! need is never pinned.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use npu_sys::Driver;

use super::region::{PinError, Pinning, Ready};

/// A region on its way.
#[derive(Debug)]
pub(super) struct Growth {
    size_bytes: u64,
    thread: JoinHandle<Result<Ready, PinError>>,
}

impl Growth {
    /// Starts to make `size_bytes` ready. `None` if the system gives no thread.
    pub(super) fn start(
        driver: &Arc<dyn Driver>,
        size_bytes: u64,
        pinning: Pinning,
    ) -> Option<Growth> {
        let driver = Arc::clone(driver);
        let make = move || Ready::make(&*driver, size_bytes, pinning);
        let thread = thread::Builder::new().name("host-arena".to_owned()).spawn(make).ok()?;
        Some(Growth { size_bytes, thread })
    }

    /// What it will add, which counts against the cap already.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The memory, if there was some, waiting for it. Nobody asked for it yet, so nobody is told
    /// why not: whoever needs it will try again and see for himself.
    pub(super) fn finish(self) -> Option<Ready> {
        self.thread.join().ok()?.ok()
    }
}
