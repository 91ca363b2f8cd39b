//! Failures as C sees them: a code, and a text that stays with the thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write as _;
use std::panic::{self, AssertUnwindSafe};

use adaptive::devices::OpenError;
use adaptive::{DriverError, Error, FileError, SettingsError, setting_hint};

/// What a call can fail with: `smartswap_code`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(crate) enum Code {
    OutOfMemory = 1,
    Usage = 2,
    Settings = 3,
    Device = 4,
    Broken = 5,
}

/// `SMARTSWAP_OK`.
pub(crate) const OK: c_int = 0;

/// A failed call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { code: Code::Usage, text: text.into() }
    }

    pub(crate) fn settings(text: impl Into<String>) -> Failure {
        Failure { code: Code::Settings, text: text.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::OutOfMemory(_) => Code::OutOfMemory,
            Error::Usage(_) | Error::Freed => Code::Usage,
            Error::Memory(_) => Code::Device,
            _ => Code::Broken,
        };
        Failure { code, text: format!("{error}{}", setting_hint(&error)) }
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        Failure { code: Code::Device, text: error.to_string() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure { code: Code::Device, text: error.to_string() }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure { code: Code::Settings, text: error.to_string() }
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        Failure::settings(error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(CString::default());
}

/// The text of the thread's last failure.
pub(crate) fn last_text() -> *const c_char {
    // A thread that ends has no last error any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// As [`last_text`], for this library itself.
pub(crate) fn last_string() -> String {
    let text = LAST.try_with(|last| last.borrow().to_string_lossy().into_owned());
    text.unwrap_or_default()
}

/// Keeps a failure's text for the thread, and returns its code.
pub(crate) fn note(failure: &Failure) -> c_int {
    let text = failure.text.replace('\0', " ");
    let text = CString::new(text).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.code as c_int
}

/// Tells the user of what ends no call. That nobody can read it does not end one either.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "SmartSwap: {text}");
}

/// Runs the body of an exported function. A panic becomes a failure: it must not reach C.
pub(crate) fn guard<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, c_int> {
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    let failure = match outcome {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(failure)) => failure,
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "a panic without a message".to_owned());
            Failure { code: Code::Broken, text: format!("internal error: {text}") }
        }
    };
    Err(note(&failure))
}

/// As [`guard`], for functions that return a code.
pub(crate) fn code(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guard(body).map_or_else(|code| code, |()| OK)
}

/// A text that C passed, if it passed one.
pub(crate) fn text_of<'a>(text: Option<&'a CStr>, what: &str) -> Result<Option<&'a str>, Failure> {
    let utf8 = |text: &'a CStr| {
        text.to_str().map_err(|_| Failure::settings(format!("{what} is not UTF-8 text")))
    };
    text.map(utf8).transpose()
}

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    #[test]
    fn a_panic_becomes_a_failure_with_its_words() {
        type Body = fn() -> Result<(), Failure>;
        let bodies: [(Body, &str); 4] = [
            (|| panic!("plain"), "internal error: plain"),
            (|| panic!("with {}", 7), "internal error: with 7"),
            (|| panic::panic_any(7), "internal error: a panic without a message"),
            (|| Err(Failure::usage("a zero\0 inside")), "a zero  inside"),
        ];
        for (body, expect) in bodies {
            let got = code(body);
            assert_eq!(
                (got == Code::Usage as c_int, last_string()),
                (expect.contains("zero"), expect.into())
            );
            assert_ne!(got, OK);
        }
        assert_eq!(code(|| Ok(())), OK);
    }
}
