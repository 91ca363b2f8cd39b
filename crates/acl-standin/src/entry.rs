//! The start and end of each call: no panic crosses the C boundary, and errors are remembered.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{self, AssertUnwindSafe};

use crate::failure::{Failure, INTERNAL_ERROR, Outcome};
use crate::runtime;

thread_local! {
    static LAST_CODE: Cell<i32> = const { Cell::new(0) };
    static UNREAD: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// The text that was read last: its reader's pointer stays good until the next reading.
    static READ: RefCell<CString> = RefCell::default();
    static IN_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Runs the body of an export and turns its outcome into a code.
pub(crate) fn run(name: &str, body: impl FnOnce() -> Outcome) -> i32 {
    // Unwind safety: a panic is a defect of this library; it is reported, and locks recover.
    let outcome = panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(Failure::new(INTERNAL_ERROR, "the stand-in panicked; the text is on stderr"))
    });
    let Err(Failure { code, text }) = outcome else { return 0 };
    if runtime::is_finalised() {
        // At a process's end nobody looks at codes any more.
        eprintln!("{name}: {text}, after aclFinalize");
    }
    LAST_CODE.set(code);
    let text: Vec<u8> = format!("{name}: {text}").bytes().filter(|&byte| byte != 0).collect();
    UNREAD.set(CString::new(text).ok());
    code
}

/// Runs the body of an export whose results are no failures to remember.
pub(crate) fn guard<T>(default: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(default)
}

/// The text of the thread's latest error, or null. Reading clears it.
pub(crate) fn take_message() -> *const c_char {
    match UNREAD.take() {
        None => std::ptr::null(),
        Some(text) => READ.with(|read| {
            *read.borrow_mut() = text;
            read.borrow().as_ptr()
        }),
    }
}

pub(crate) fn last_code() -> i32 {
    LAST_CODE.get()
}

pub(crate) fn take_last_code() -> i32 {
    LAST_CODE.take()
}

/// Whether the thread is inside a host function, which may not call the library.
pub(crate) fn in_function() -> bool {
    IN_FUNCTION.get()
}

/// Runs a host function.
pub(crate) fn as_function(body: impl FnOnce()) {
    let outside = IN_FUNCTION.replace(true);
    body();
    IN_FUNCTION.set(outside);
}

/// Defines functions of the library: exported, with a C signature, guarded.
///
/// Null or wrong arguments give a code. `out` and other pointers are as their types say; memory
/// that a copy or fill is given must be there, as on a device.
macro_rules! exports {
    ($( $(#[$meta:meta])*
        fn $name:ident ( $($argument:ident : $type:ty),* $(,)? ) $body:block )*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        /// Pointers are null or good for what the call does with them, until its work is complete.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)] // The library's own names.
        pub unsafe extern "C" fn $name($($argument: $type),*) -> i32 {
            $crate::entry::run(stringify!($name), move || $body)
        }
    )* };
}
pub(crate) use exports;
