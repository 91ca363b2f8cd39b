//! Plans of one step that do not need each other, made side by side where there are cores for it.

use std::panic;
use std::thread;

/// With fewer cores the training needs them all.
const CORES_MIN: usize = 4;

/// Whether there are cores to spare.
pub(crate) fn has_spare_cores() -> bool {
    thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES_MIN)
}

/// What both come to, at the same time if there are cores to spare.
pub(crate) fn both<A: Send, B>(
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    if !has_spare_cores() {
        return (one(), other());
    }
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        let one = one.join().unwrap_or_else(|payload| panic::resume_unwind(payload));
        (one, other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_come_back_in_their_order_and_a_panic_is_passed_on() {
        assert_eq!(both(|| 1, || "two"), (1, "two"));
        let failed = panic::catch_unwind(|| both(|| panic!("one"), || 2));
        assert_eq!(failed.expect_err("it panics").downcast_ref(), Some(&"one"));
    }
}
