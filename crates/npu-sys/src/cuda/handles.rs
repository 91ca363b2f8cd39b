//! Streams and events: which there are, and when each is destroyed.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use crate::cuda::context::Context;
use crate::cuda::failure::invalid;
use crate::cuda::sys::{CUevent, CUstream};
use crate::drop_failures;
use crate::error::DriverError;
use crate::sync::{read, write};

/// What a handle is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Stream,
    /// A stream of another library, which destroys it.
    BorrowedStream,
    Event,
}

/// An object of the library. The last user destroys it.
#[derive(Debug)]
pub(super) struct Handle {
    address: u64,
    kind: Kind,
    is_destroyed: bool,
    context: Arc<Context>,
}

impl Handle {
    pub(super) fn stream(&self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    pub(super) fn event(&self) -> CUevent {
        std::ptr::with_exposed_provenance_mut(self.address as usize)
    }

    /// Whether it is not borrowed.
    pub(super) fn is_own(&self) -> bool {
        self.kind != Kind::BorrowedStream
    }

    fn destroy(&mut self, call: &'static str) -> Result<(), DriverError> {
        if self.is_own() {
            let cuda = self.context.enter(call)?;
            let code = match self.kind {
                Kind::Event => {
                    // SAFETY: the library made the event for us, and `&mut` makes this the only
                    // user. Submitted waits on it are not affected.
                    unsafe { (cuda.api().cuEventDestroy_v2)(self.event()) }
                }
                Kind::Stream | Kind::BorrowedStream => {
                    // SAFETY: as for events. Submitted work still runs.
                    unsafe { (cuda.api().cuStreamDestroy_v2)(self.stream()) }
                }
            };
            cuda.check(code)?;
        }
        self.is_destroyed = true;
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.is_destroyed {
            drop_failures::note(self.destroy("drop"));
        }
    }
}

/// All streams, or all events. What is not here is refused, so that a wrong number, which the
/// library would follow as an address, is an error.
#[derive(Debug)]
pub(super) struct Handles {
    /// What one is called in errors.
    name: &'static str,
    by_address: RwLock<BTreeMap<u64, Arc<Handle>>>,
}

impl Handles {
    pub(super) fn new(name: &'static str) -> Handles {
        Handles { name, by_address: RwLock::default() }
    }

    /// Takes in an object that the library has just made, or that is borrowed.
    ///
    /// # Safety
    /// It is of that kind and of that context, and lives until it is destroyed here.
    pub(super) unsafe fn insert(&self, address: u64, kind: Kind, context: &Arc<Context>) {
        let context = Arc::clone(context);
        self.put(Handle { address, kind, is_destroyed: false, context });
    }

    fn put(&self, handle: Handle) {
        let mut table = write(&self.by_address);
        table.insert(handle.address, Arc::new(handle));
    }

    /// The object, which lives at least as long as the result.
    pub(super) fn get(&self, call: &'static str, address: u64) -> Result<Arc<Handle>, DriverError> {
        let table = read(&self.by_address);
        table.get(&address).cloned().ok_or_else(|| self.unknown(call, address))
    }

    /// Destroys the object, at the latest when its last user is done with it.
    pub(super) fn destroy(&self, call: &'static str, address: u64) -> Result<(), DriverError> {
        let removed = {
            let mut table = write(&self.by_address);
            table.remove(&address)
        };
        let handle = removed.ok_or_else(|| self.unknown(call, address))?;
        let Ok(mut handle) = Arc::try_unwrap(handle) else { return Ok(()) };
        handle.destroy(call).inspect_err(|_| self.put(handle))
    }

    /// Takes all out; each is destroyed when the last user drops it.
    pub(super) fn take_all(&self) -> Vec<Arc<Handle>> {
        let mut table = write(&self.by_address);
        std::mem::take(&mut *table).into_values().collect()
    }

    fn unknown(&self, call: &'static str, address: u64) -> DriverError {
        invalid(call, format!("{} {address:#x} does not exist", self.name))
    }
}
