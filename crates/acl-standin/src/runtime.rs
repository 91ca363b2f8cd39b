//! The devices, and which of them a thread works on.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use npu_sys::devices::HostDriver;
use npu_sys::{Driver, StreamHandle};

use crate::entry;
use crate::failure::{
    Failure, INVALID_PARAM, Outcome, REPEAT_FINALIZE, REPEAT_INITIALIZE, RT_CONTEXT_NULL,
    RT_INVALID_DEVICEID, RT_PARAM_INVALID, UNINITIALIZE, refuse,
};
use crate::reset;
use crate::settings::Settings;
use crate::tables::{Context, DeviceState, Stream, Tables, Token, token};

/// Between `aclInit` and `aclFinalize`.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) settings: Settings,
    pub(crate) drivers: Vec<Arc<HostDriver>>,
    tables: Mutex<Tables>,
    /// Operators that failed when their time came, and on which device, until somebody waits.
    failures: Mutex<Vec<(usize, Failure)>>,
}

#[derive(Debug)]
enum Phase {
    New,
    Live(Arc<Runtime>),
    Finalised,
}

static PHASE: Mutex<Phase> = Mutex::new(Phase::New);

thread_local! {
    static CURRENT: Cell<Option<Token>> = const { Cell::new(None) };
}

/// A call on a thread that has a device: where it works.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) device: usize,
    pub(crate) context: Token,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn initialise() -> Outcome {
    let mut phase = lock(&PHASE);
    if let Phase::Live(_) = &*phase {
        return refuse(REPEAT_INITIALIZE, "the library is initialised already");
    }
    let settings = Settings::read(|name| std::env::var_os(name))?;
    let drivers = (0..settings.device_count).map(|_| HostDriver::new(settings.device.clone()));
    let drivers = drivers.collect::<Result<Vec<_>, _>>()?;
    let tables = Mutex::new(Tables::new(drivers.len()));
    *phase =
        Phase::Live(Arc::new(Runtime { settings, drivers, tables, failures: Mutex::default() }));
    Ok(())
}

pub(crate) fn finalise() -> Outcome {
    let mut phase = lock(&PHASE);
    match &*phase {
        Phase::New => return refuse(UNINITIALIZE, "aclInit was not called"),
        Phase::Finalised => return refuse(REPEAT_FINALIZE, "the library is finalised already"),
        Phase::Live(runtime) => {
            for device in 0..runtime.drivers.len() {
                runtime.end_device(&mut runtime.tables(), device, INVALID_PARAM)?;
            }
        }
    }
    *phase = Phase::Finalised;
    Ok(())
}

/// Whether the library has ended.
pub(crate) fn is_finalised() -> bool {
    matches!(&*lock(&PHASE), Phase::Finalised)
}

/// How many devices there are, also before `aclInit`.
pub(crate) fn device_count() -> Outcome<usize> {
    match &*lock(&PHASE) {
        Phase::Live(runtime) => Ok(runtime.drivers.len()),
        _ => Ok(Settings::read(|name| std::env::var_os(name))?.device_count),
    }
}

/// The live library, for calls that need no device.
pub(crate) fn runtime() -> Outcome<Arc<Runtime>> {
    if entry::in_function() {
        return refuse(RT_CONTEXT_NULL, "a host function may not call the library");
    }
    match &*lock(&PHASE) {
        Phase::Live(runtime) => Ok(Arc::clone(runtime)),
        _ => refuse(UNINITIALIZE, "the library is not initialised: call aclInit"),
    }
}

/// The start of every call that works on the thread's current device.
pub(crate) fn enter() -> Outcome<Scope> {
    let runtime = runtime()?;
    let context = CURRENT.get();
    let found = context.and_then(|context| {
        let tables = runtime.tables();
        tables.contexts.get(&context).map(|&Context { device, .. }| (device, context))
    });
    match found {
        Some((device, context)) => Ok(Scope { runtime, device, context }),
        None => refuse(
            RT_CONTEXT_NULL,
            "this thread has no device: call aclrtSetDevice on it first, and after a reset again",
        ),
    }
}

/// Makes a context the thread's own.
pub(crate) fn set_current(context: Option<Token>) {
    CURRENT.set(context);
}

pub(crate) fn current() -> Option<Token> {
    CURRENT.get()
}

impl Runtime {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    /// Keeps the failure of work on a device for the next who waits for the device.
    pub(crate) fn note_failure(&self, device: usize, failure: Failure) {
        lock(&self.failures).push((device, failure));
    }

    /// Tells, once, of work on a device that has failed.
    pub(crate) fn tell_failure(&self, device: usize) -> Outcome {
        let mut failures = lock(&self.failures);
        match failures.iter().position(|(own, _)| *own == device) {
            Some(at) => Err(failures.remove(at).1),
            None => Ok(()),
        }
    }

    /// Checks a device's number.
    pub(crate) fn device(&self, id: i64) -> Outcome<usize> {
        let count = self.drivers.len();
        match usize::try_from(id) {
            Ok(device) if device < count => Ok(device),
            _ => {
                let text = format!("there is no device {id}, there are {count}");
                refuse(RT_INVALID_DEVICEID, text)
            }
        }
    }

    /// Makes a device the thread's current one.
    pub(crate) fn set_device(&self, device: usize) -> Outcome {
        let mut tables = self.tables();
        if tables.devices[device].context.is_none() {
            let driver = &self.drivers[device];
            let (for_default, for_copies) = (driver.create_stream()?, driver.create_stream()?);
            let (context, default_stream) = (token(), token());
            tables.contexts.insert(context, Context { device, is_default: true });
            let stream = Stream::new(device, context, for_default);
            tables.streams.insert(default_stream, stream);
            let state = &mut tables.devices[device];
            state.context = Some(context);
            state.streams = Some((default_stream, for_copies));
        }
        set_current(tables.devices[device].context);
        Ok(())
    }

    /// Gives a device's own things back. Everything else must be gone.
    pub(crate) fn reset_device(&self, device: usize) -> Outcome {
        let mut tables = self.tables();
        if tables.devices[device].context.is_none() {
            return refuse(RT_PARAM_INVALID, format!("device {device} was not set"));
        }
        self.end_device(&mut tables, device, RT_PARAM_INVALID)
    }

    /// Ends the use of a device, and refuses it with `code` if something is held.
    fn end_device(&self, tables: &mut Tables, device: usize, code: i32) -> Outcome {
        let driver = &self.drivers[device];
        if self.settings.reset_frees {
            reset::give_back(tables, device, driver)?;
        } else if let Some(held) = self.held(tables, device) {
            return refuse(code, format!("device {device} still holds {held}"));
        }
        tables.reset(device, driver)
    }

    /// What is still held of a device, in words.
    fn held(&self, tables: &Tables, device: usize) -> Option<String> {
        let ledger = self.ledger(tables, device);
        let counts = [
            (ledger.chunk_count, "pieces of physical memory"),
            (ledger.mapping_count, "mappings"),
            (ledger.range_count, "reserved ranges"),
            (ledger.pinned_bytes, "pinned bytes"),
            (ledger.registered_bytes, "registered bytes"),
            (ledger.stream_count, "streams"),
            (ledger.event_count, "events"),
            (tables.contexts_made(device), "contexts"),
        ];
        let held: Vec<String> = counts
            .into_iter()
            .filter(|&(count, _)| count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!held.is_empty()).then(|| held.join(", "))
    }

    /// What a device holds, without what this library made for itself.
    pub(crate) fn ledger(&self, tables: &Tables, device: usize) -> npu_sys::devices::Ledger {
        let ledger = self.drivers[device].ledger();
        let DeviceState { streams, marks, .. } = tables.devices[device];
        let own_streams = if streams.is_some() { 2 } else { 0 };
        npu_sys::devices::Ledger {
            stream_count: ledger.stream_count - own_streams,
            event_count: ledger.event_count - marks,
            ..ledger
        }
    }
}

impl Scope {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.runtime.tables()
    }

    pub(crate) fn driver(&self) -> &Arc<HostDriver> {
        &self.runtime.drivers[self.device]
    }

    /// The stream for work that the caller waits for.
    pub(crate) fn copy_stream(&self) -> StreamHandle {
        let tables = self.tables();
        let (_, for_copies) =
            tables.devices[self.device].streams.expect("a device with a context has its streams");
        for_copies
    }
}
