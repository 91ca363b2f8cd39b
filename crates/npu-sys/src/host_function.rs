//! What is alike in all drivers when a host function runs: its panic goes no further, and while
//! it runs, its thread may not wait.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::OnceLock;
use std::thread::{self, LocalKey};

use crate::driver::HostFunction;
use crate::error::{DriverError, ErrorKind};
use crate::types::Access;

/// Whether the calling thread is inside a host function of one kind of driver.
pub(crate) type IsInside = LocalKey<Cell<bool>>;

/// The text of the first failure of work on the host. Later ones are likely its consequence.
#[derive(Debug, Default)]
pub(crate) struct FirstFailure(OnceLock<String>);

impl FirstFailure {
    pub(crate) fn note(&self, outcome: Result<(), String>) {
        if let Err(text) = outcome {
            self.0.get_or_init(|| text);
        }
    }

    /// The failure of work that ran earlier, as an error of `call`.
    pub(crate) fn check(&self, call: &'static str, code: i64) -> Result<(), DriverError> {
        let Some(text) = self.0.get() else { return Ok(()) };
        Err(DriverError { call, code, text: text.clone().into(), kind: ErrorKind::Failed })
    }
}

/// Runs the body of a function. A panic comes back as its text.
pub(crate) fn run(
    name: &str,
    is_inside: &'static IsInside,
    body: impl FnOnce(),
) -> Result<(), String> {
    let was_inside = is_inside.replace(true);
    // Unwind safety: the body is gone afterwards, and its operands are plain bytes.
    let outcome = panic::catch_unwind(AssertUnwindSafe(body));
    is_inside.set(was_inside);
    outcome.map_err(|payload| {
        let text = format!("host function '{name}' panicked: {}", text(&*payload));
        // A payload whose own drop panics would unwind into the library.
        std::mem::forget(payload);
        text
    })
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Does what a host function may not do: here, or on a thread of its own if here is one.
pub(crate) fn outside(
    is_inside: &'static IsInside,
    thread: &str,
    work: impl FnOnce() + Send + 'static,
) {
    if is_inside.get() {
        // Where no thread can be had, the end of the process does it.
        drop(thread::Builder::new().name(thread.to_owned()).spawn(work));
    } else {
        work();
    }
}

/// What can be seen to be wrong with a function before it runs.
pub(crate) fn check(function: &HostFunction) -> Result<(), String> {
    if !function.cost_us.is_finite() || function.cost_us < 0.0 {
        return Err(format!("a cost of {} microseconds", function.cost_us));
    }
    let end = |access: &Access| access.start.0.checked_add(access.size_bytes);
    for (index, a) in function.accesses.iter().enumerate() {
        if a.size_bytes == 0 {
            return Err(format!("{:?} is accessed for 0 bytes", a.start));
        }
        let Some(a_end) = end(a) else {
            return Err(format!("{a:?} ends behind all addresses"));
        };
        for b in &function.accesses[index + 1..] {
            let is_apart = a_end <= b.start.0 || end(b).is_some_and(|b_end| b_end <= a.start.0);
            if !is_apart && (a.mode.writes() || b.mode.writes()) {
                return Err(format!("{a:?} overlaps {b:?}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{AccessMode, DevicePtr};

    thread_local! {
        static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    fn function(accesses: &[(u64, u64, AccessMode)], cost_us: f64) -> HostFunction {
        let access =
            |&(start, size_bytes, mode)| Access { start: DevicePtr(start), size_bytes, mode };
        let accesses = accesses.iter().map(access).collect();
        HostFunction { name: "probe", accesses, cost_us, body: Box::new(|_| ()) }
    }

    fn run(body: impl FnOnce()) -> Result<(), String> {
        super::run("probe", &IS_INSIDE, body)
    }

    #[test]
    fn a_panic_comes_back_as_its_text_and_the_first_one_stays() {
        let failure = FirstFailure::default();
        failure.note(run(|| assert!(IS_INSIDE.get())));
        assert_eq!(failure.check("copy", 7), Ok(()));
        failure.note(run(|| panic!("number {}", 7)));
        failure.note(run(|| panic!("later")));
        let error = failure.check("copy", 7).unwrap_err();
        assert_eq!((error.call, error.code, error.kind), ("copy", 7, ErrorKind::Failed));
        assert_eq!(error.text, "host function 'probe' panicked: number 7");
        assert!(!IS_INSIDE.get());
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let outcome = run(|| panic::panic_any(Bomb));
        assert_eq!(outcome.unwrap_err(), "host function 'probe' panicked: no text");
    }

    #[test]
    fn a_function_with_a_cost_and_accesses_apart_passes() {
        use AccessMode::{Read, ReadWrite, Write};
        let check = |accesses: &[_], cost_us, expect: &str| {
            let text = super::check(&function(accesses, cost_us)).err().unwrap_or_default();
            assert!(text.contains(expect) && expect.is_empty() == text.is_empty(), "{text}");
        };
        check(&[(0, 8, Write), (8, 8, ReadWrite), (32, 8, Read), (36, 8, Read)], 1.5, "");
        check(&[(0, 9, Write), (8, 8, Read)], 0.0, "overlaps");
        check(&[(8, 8, Read), (0, 9, ReadWrite)], 0.0, "overlaps");
        check(&[(8, 0, Read)], 0.0, "is accessed for 0 bytes");
        check(&[(u64::MAX, 2, Read)], 0.0, "ends behind all addresses");
        check(&[(0, 8, Write), (4, u64::MAX, Read)], 0.0, "overlaps");
        for cost_us in [-1.0, f64::NAN, f64::INFINITY] {
            check(&[], cost_us, "microseconds");
        }
    }
}
