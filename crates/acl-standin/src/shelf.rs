//! Small things that callers create, fill and destroy: descriptions, buffers, attributes.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::{Opaque, address, pointer};
use crate::failure::{INVALID_PARAM, Outcome, refuse};
use crate::tables::{Token, token};

/// What callers have created of one kind. They need no device, nor the library initialised.
pub(crate) struct Shelf<T> {
    kind: &'static str,
    things: Mutex<BTreeMap<Token, T>>,
}

impl<T> Shelf<T> {
    pub(crate) const fn new(kind: &'static str) -> Shelf<T> {
        Shelf { kind, things: Mutex::new(BTreeMap::new()) }
    }

    fn things(&self) -> MutexGuard<'_, BTreeMap<Token, T>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a thing, and gives the handle under which callers know it.
    pub(crate) fn put(&self, thing: T) -> Opaque {
        let token = token();
        self.things().insert(token, thing);
        pointer(token as u64)
    }

    /// Looks at the thing behind a handle, or changes it.
    pub(crate) fn with<R>(&self, handle: Opaque, body: impl FnOnce(&mut T) -> R) -> Outcome<R> {
        let token = address(handle) as Token;
        match self.things().get_mut(&token) {
            Some(thing) => Ok(body(thing)),
            None => self.refuse(token),
        }
    }

    /// Ends a thing.
    pub(crate) fn take(&self, handle: Opaque) -> Outcome<T> {
        let token = address(handle) as Token;
        let thing = self.things().remove(&token);
        thing.map_or_else(|| self.refuse(token), Ok)
    }

    fn refuse<R>(&self, token: Token) -> Outcome<R> {
        refuse(INVALID_PARAM, format!("{token:#x} is not a {}, or destroyed", self.kind))
    }
}
