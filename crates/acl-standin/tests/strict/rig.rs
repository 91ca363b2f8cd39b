//! The library under chosen settings, and its calls as one makes them in C.

use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ascendcl::{
    AclrtMallocAttribute, AclrtMallocConfig, AclrtMemLocation, AclrtPhysicalMemProp, In, Opaque,
    Out, StandinLedger,
};

/// The size of physical memory, in the default settings.
pub(crate) const UNIT: usize = 2 << 20;

pub(crate) const PARAM: i32 = 107_000;
pub(crate) const NO_DEVICE: i32 = 107_002;
pub(crate) const OTHER_CONTEXT: i32 = 107_003;
pub(crate) const BAD_HANDLE: i32 = 107_017;
pub(crate) const UNSUPPORTED: i32 = 207_000;
pub(crate) const OUT_OF_MEMORY: i32 = 207_001;

pub(crate) const H2H: i32 = 0;
pub(crate) const H2D: i32 = 1;
pub(crate) const D2H: i32 = 2;
pub(crate) const D2D: i32 = 3;

/// One library a process: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

const VARIABLES: [&str; 9] = [
    "ACL_STANDIN_DEVICES",
    "ACL_STANDIN_MEMORY",
    "ACL_STANDIN_GRANULARITY",
    "ACL_STANDIN_LINK",
    "ACL_STANDIN_MODE",
    "ACL_STANDIN_RESET",
    "ACL_STANDIN_VMM",
    "ACL_STANDIN_VA_FLAG",
    "ACL_STANDIN_HOST_LIMIT",
];

/// Calls a function of the library. All are safe for arguments that are null, numbers that it
/// gave out, or memory that the test keeps until the work on it is complete.
macro_rules! acl {
    ($name:ident ( $($argument:expr),* $(,)? )) => {{
        // SAFETY: as said at `acl`.
        unsafe { ascendcl::$name($($argument),*) }
    }};
}
pub(crate) use acl;

/// A call that must succeed.
macro_rules! ok {
    ($name:ident ( $($argument:expr),* $(,)? )) => {{
        let code = $crate::rig::acl!($name($($argument),*));
        assert_eq!(code, 0, "{}", $crate::rig::message());
    }};
}
pub(crate) use ok;

/// A call that must be refused with this code and a text that holds these words.
macro_rules! refused {
    ($code:expr, $words:literal, $name:ident ( $($argument:expr),* $(,)? )) => {{
        let code = $crate::rig::acl!($name($($argument),*));
        let text = $crate::rig::message();
        assert_eq!(code, $code, "{text}");
        assert!(text.starts_with(concat!(stringify!($name), ": ")), "{text}");
        assert!(text.contains($words), "{text}");
    }};
}
pub(crate) use refused;

/// The text of the latest error.
pub(crate) fn message() -> String {
    let text = ascendcl::aclGetRecentErrMsg();
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a string of the library, good until the next reading on this thread.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

/// Sets variables and takes a turn; nothing is initialised yet.
pub(crate) fn variables(settings: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for name in VARIABLES {
        // SAFETY: who reads or writes the environment in this process has the turn.
        unsafe { std::env::remove_var(name) };
    }
    for (name, value) in settings {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
    turn
}

/// Runs a test on device 0 of the library. In the end nothing may be held.
pub(crate) fn with(settings: &[(&str, &str)], test: impl FnOnce()) {
    let _turn = variables(settings);
    // What a failed test left behind must not fail this one.
    acl!(aclFinalize());
    ok!(aclInit(std::ptr::null()));
    ok!(aclrtSetDevice(0));
    test();
    assert_eq!(held(0), StandinLedger::default());
    ok!(aclFinalize());
}

/// Runs a test in every mode.
pub(crate) fn in_all_modes(test: impl Fn()) {
    let modes = ["threads", "by-time", "seed:1", "seed:2", "seed:3"];
    for mode in modes {
        with(&[("ACL_STANDIN_MODE", mode)], &test);
    }
}

pub(crate) fn ledger(device: i32) -> StandinLedger {
    let mut ledger = StandinLedger::default();
    ok!(standin_ledger(device, Out::to(&mut ledger)));
    ledger
}

/// The ledger without what is not held: capacity, peaks, and what was copied.
pub(crate) fn held(device: i32) -> StandinLedger {
    StandinLedger {
        capacity_bytes: 0,
        chunk_bytes_peak: 0,
        pinned_bytes_peak: 0,
        copied_in_bytes: 0,
        copied_out_bytes: 0,
        ..ledger(device)
    }
}

pub(crate) fn property() -> AclrtPhysicalMemProp {
    AclrtPhysicalMemProp {
        mem_attr: 4,
        location: AclrtMemLocation { id: 0, kind: 1 },
        ..AclrtPhysicalMemProp::default()
    }
}

pub(crate) fn null() -> Opaque {
    std::ptr::null_mut()
}

pub(crate) fn at(start: Opaque, offset: usize) -> Opaque {
    start.wrapping_byte_add(offset)
}

pub(crate) fn reserved(size: usize) -> Opaque {
    let mut start = null();
    ok!(aclrtReserveMemAddress(Out::to(&mut start), size, 0, null(), 1));
    start
}

pub(crate) fn physical(size: usize) -> Opaque {
    let mut handle = null();
    ok!(aclrtMallocPhysical(Out::to(&mut handle), size, In::from(&property()), 0));
    handle
}

/// Mapped device memory.
pub(crate) struct Buffer {
    pub(crate) start: Opaque,
    pub(crate) handle: Opaque,
}

impl Buffer {
    pub(crate) fn new(size: usize) -> Buffer {
        let (start, handle) = (reserved(size), physical(size));
        ok!(aclrtMapMem(start, size, 0, handle, 0));
        Buffer { start, handle }
    }

    pub(crate) fn free(self) {
        ok!(aclrtUnmapMem(self.start));
        ok!(aclrtFreePhysical(self.handle));
        ok!(aclrtReleaseMemAddress(self.start));
    }
}

pub(crate) fn pinned(size: usize) -> Opaque {
    let mut start = null();
    ok!(aclrtMallocHost(Out::to(&mut start), size));
    start
}

/// 4 KiB of host memory with an attribute, and what the call returned.
pub(crate) fn configured(attr: i32, value: u32) -> (i32, Opaque) {
    let attribute = AclrtMallocAttribute { attr, value: [value, 0] };
    let config = AclrtMallocConfig { attrs: &attribute, num_attrs: 1 };
    let mut start = null();
    let code = acl!(aclrtMallocHostWithCfg(Out::to(&mut start), 4096, In::from(&config)));
    (code, start)
}

/// 4 KiB of host memory with one address for both.
pub(crate) fn shared() -> Opaque {
    let (code, start) = configured(3, 1);
    assert_eq!(code, 0, "{}", message());
    start
}

pub(crate) fn stream() -> Opaque {
    let mut stream = null();
    ok!(aclrtCreateStream(Out::to(&mut stream)));
    stream
}

/// Waits for a stream and destroys it.
pub(crate) fn finish(stream: Opaque) {
    ok!(aclrtSynchronizeStream(stream));
    ok!(aclrtDestroyStream(stream));
}

pub(crate) const SYNC: u32 = 1;
pub(crate) const TIME_LINE: u32 = 8;

pub(crate) fn old_event() -> Opaque {
    let mut event = null();
    ok!(aclrtCreateEvent(Out::to(&mut event)));
    event
}

pub(crate) fn ex_event(flags: u32) -> Opaque {
    let mut event = null();
    ok!(aclrtCreateEventExWithFlag(Out::to(&mut event), flags));
    event
}

/// Host memory on which no work is left.
pub(crate) fn bytes(start: Opaque, size: usize) -> Vec<u8> {
    // SAFETY: the tests ask for memory that they hold.
    unsafe { std::slice::from_raw_parts(start.cast::<u8>(), size) }.to_vec()
}

pub(crate) fn write(start: Opaque, bytes: &[u8]) {
    // SAFETY: the tests write to memory that they hold.
    unsafe { start.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Keeps a stream busy until told.
pub(crate) struct Hold(std::sync::mpsc::Sender<()>);

unsafe extern "C" fn wait_for_release(argument: *mut c_void) {
    // SAFETY: `Hold::on` gives a boxed receiver, once.
    let held = unsafe { Box::from_raw(argument.cast::<std::sync::mpsc::Receiver<()>>()) };
    held.recv().unwrap_or_default();
}

impl Hold {
    /// Holds a stream, on threads.
    pub(crate) fn on(stream: Opaque) -> Hold {
        let (release, held) = std::sync::mpsc::channel();
        let argument = Box::into_raw(Box::new(held)).cast();
        ok!(aclrtLaunchHostFunc(stream, Some(wait_for_release), argument));
        Hold(release)
    }

    pub(crate) fn release(self) {
        self.0.send(()).unwrap();
    }
}
