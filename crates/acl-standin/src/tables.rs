//! What the library has given out: contexts, streams, events, memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use npu_sys::devices::HostDriver;
use npu_sys::{ChunkHandle, Driver, DriverError, EventHandle, StreamHandle, VaRange};

use crate::alias::Alias;
use crate::failure::{Outcome, RT_INVALID_HANDLE, RT_PARAM_INVALID, RT_STREAM_CONTEXT, refuse};
use crate::runtime::Scope;

/// A handle as callers see it. No number is ever used twice, nor is any an address.
pub(crate) type Token = usize;

const FIRST_TOKEN: Token = 0x0AC1_0000_0000_0000;
const TOKEN_STEP: Token = 16;

/// A new handle. The count goes on when the library is initialised again.
pub(crate) fn token() -> Token {
    static NEXT: AtomicUsize = AtomicUsize::new(FIRST_TOKEN);
    NEXT.fetch_add(TOKEN_STEP, Ordering::Relaxed)
}

#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) devices: Vec<DeviceState>,
    pub(crate) contexts: BTreeMap<Token, Context>,
    pub(crate) streams: BTreeMap<Token, Stream>,
    pub(crate) events: BTreeMap<Token, Event>,
    pub(crate) physical: BTreeMap<Token, Physical>,
    // Memory by its start address.
    pub(crate) ranges: BTreeMap<u64, Range>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    pub(crate) host: BTreeMap<u64, HostMemory>,
    pub(crate) registered: BTreeMap<u64, Registered>,
    /// Threads that run callbacks.
    pub(crate) mailboxes: BTreeMap<u64, Arc<Mailbox>>,
}

/// A device between the first `aclrtSetDevice` and its reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceState {
    pub(crate) context: Option<Token>,
    /// The default stream, and the one for work that callers wait for.
    pub(crate) streams: Option<(Token, StreamHandle)>,
    /// Events of the host driver that stand behind waits.
    pub(crate) marks: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) is_default: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) context: Token,
    pub(crate) handle: StreamHandle,
    /// Work submitted, and how much of it the host has seen complete.
    pub(crate) submitted: u64,
    pub(crate) seen: u64,
    /// The thread that runs its callbacks.
    pub(crate) subscriber: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) device: usize,
    pub(crate) context: Token,
    pub(crate) handle: EventHandle,
    /// Freely recorded again, or to be reset first.
    pub(crate) is_ex: bool,
    pub(crate) flags: u32,
    /// The stream, and how much work it had then.
    pub(crate) recorded: Option<(Token, u64)>,
    /// The waits on an old-style event since its reset.
    pub(crate) waits: Vec<Wait>,
}

/// A wait of a stream for an old-style event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) stream: Token,
    /// Recorded behind the wait.
    pub(crate) mark: EventHandle,
}

#[derive(Debug)]
pub(crate) struct Physical {
    pub(crate) device: usize,
    pub(crate) chunk: ChunkHandle,
    pub(crate) size_bytes: u64,
    pub(crate) mapping_count: u64,
    pub(crate) reference_count: u64,
    pub(crate) mem_attr: i32,
}

#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) device: usize,
    pub(crate) range: VaRange,
}

#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) device: usize,
    pub(crate) size_bytes: u64,
    pub(crate) physical: Token,
}

/// Memory of `aclrtMalloc`.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) device: usize,
    pub(crate) asked_bytes: u64,
    pub(crate) range: VaRange,
    pub(crate) chunk: ChunkHandle,
}

/// Memory of `aclrtMallocHost`.
#[derive(Debug)]
pub(crate) struct HostMemory {
    pub(crate) device: usize,
    pub(crate) asked_bytes: u64,
    /// In whole pages.
    pub(crate) size_bytes: u64,
    /// The device may use the same address, in copies as well.
    pub(crate) is_shared: bool,
}

/// Memory of `aclrtHostRegister`.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) device: usize,
    /// In whole pages.
    pub(crate) size_bytes: u64,
    /// Where the device sees it, if it may.
    pub(crate) alias: Option<Alias>,
    /// Whether it lies in memory of `aclrtMallocHost`, which the host driver knows already.
    pub(crate) is_pinned_already: bool,
}

/// Callbacks for one thread.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pub(crate) reports: Mutex<VecDeque<Report>>,
    pub(crate) arrival: Condvar,
}

/// A callback whose turn has come. Dropping it says that it is over.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) function: unsafe extern "C" fn(*mut std::ffi::c_void),
    pub(crate) argument: u64,
    pub(crate) done: Option<std::sync::mpsc::Sender<()>>,
}

impl Stream {
    pub(crate) fn new(device: usize, context: Token, handle: StreamHandle) -> Stream {
        Stream { device, context, handle, submitted: 0, seen: 0, subscriber: None }
    }
}

impl Tables {
    pub(crate) fn new(device_count: usize) -> Tables {
        Tables {
            devices: vec![DeviceState::default(); device_count],
            contexts: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            physical: BTreeMap::new(),
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
            allocations: BTreeMap::new(),
            host: BTreeMap::new(),
            registered: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
        }
    }

    /// Contexts of a device that callers created.
    pub(crate) fn contexts_made(&self, device: usize) -> u64 {
        let made = |context: &&Context| context.device == device && !context.is_default;
        self.contexts.values().filter(made).count() as u64
    }

    /// Forgets a device's own context and streams.
    pub(crate) fn reset(&mut self, device: usize, driver: &HostDriver) -> Outcome {
        if let Some((default_stream, for_copies)) = self.devices[device].streams.take() {
            driver.synchronize()?;
            let stream = self.streams.remove(&default_stream).expect("made with the context");
            driver.destroy_stream(stream.handle)?;
            driver.destroy_stream(for_copies)?;
        }
        if let Some(context) = self.devices[device].context.take() {
            self.contexts.remove(&context);
        }
        Ok(())
    }

    /// The token of a stream as a caller gave it; null is the default stream.
    pub(crate) fn stream_token(&self, scope: &Scope, stream: Token) -> Outcome<Token> {
        let (default_stream, _) =
            self.devices[scope.device].streams.expect("a device with a context has its streams");
        let token = if stream == 0 { default_stream } else { stream };
        let Some(found) = self.streams.get(&token) else {
            return refuse(RT_INVALID_HANDLE, format!("{stream:#x} is not a stream, or destroyed"));
        };
        if found.device != scope.device
            || (token != default_stream && found.context != scope.context)
        {
            return refuse(RT_STREAM_CONTEXT, format!("stream {stream:#x} is of another context"));
        }
        Ok(token)
    }

    /// Gives work to a stream.
    pub(crate) fn submit(
        &mut self,
        token: Token,
        submit: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
    ) -> Outcome {
        let stream = self.streams.get_mut(&token).expect("checked by `stream_token`");
        submit(stream.handle)?;
        stream.submitted += 1;
        Ok(())
    }

    /// Notes that the host has seen so much of a stream's work complete.
    pub(crate) fn see(&mut self, token: Token, count: u64) {
        if let Some(stream) = self.streams.get_mut(&token) {
            stream.seen = stream.seen.max(count);
        }
    }

    /// Notes that the host has seen an event complete.
    pub(crate) fn see_event(&mut self, token: Token) {
        let recorded = self.events.get(&token).and_then(|event| event.recorded);
        if let Some((stream, count)) = recorded {
            self.see(stream, count);
        }
    }

    pub(crate) fn event(&mut self, scope: &Scope, token: Token) -> Outcome<&mut Event> {
        match self.events.get_mut(&token) {
            None => refuse(RT_INVALID_HANDLE, format!("{token:#x} is not an event, or destroyed")),
            Some(event) if event.device != scope.device || event.context != scope.context => {
                refuse(RT_STREAM_CONTEXT, format!("event {token:#x} is of another context"))
            }
            Some(event) => Ok(event),
        }
    }

    /// How many waits for an old-style event are not complete. What comes `later_on` a stream
    /// is behind that stream's own waits, so they do not count.
    pub(crate) fn waits_under_way(
        &mut self,
        scope: &Scope,
        token: Token,
        later_on: Option<Token>,
    ) -> Outcome<usize> {
        let waits = self.event(scope, token)?.waits.clone();
        let mut under_way = 0;
        for wait in waits {
            let follows = later_on == Some(wait.stream);
            if !follows && !scope.driver().query_event(wait.mark)? {
                under_way += 1;
            }
        }
        Ok(under_way)
    }

    /// Forgets the waits of an event and their marks.
    pub(crate) fn forget_waits(&mut self, scope: &Scope, token: Token) -> Outcome {
        let waits = std::mem::take(&mut self.event(scope, token)?.waits);
        for wait in waits {
            scope.driver().destroy_event(wait.mark)?;
            self.devices[scope.device].marks -= 1;
        }
        Ok(())
    }

    pub(crate) fn physical(&mut self, token: Token) -> Outcome<&mut Physical> {
        match self.physical.get_mut(&token) {
            Some(physical) => Ok(physical),
            None => {
                let text = format!("{token:#x} is no physical memory, or freed");
                refuse(RT_PARAM_INVALID, text)
            }
        }
    }
}
