//! Work on things that do not need each other, side by side where there are cores for it. What
//! comes of it is the same on any number of cores.

use std::panic;
use std::thread;

/// With fewer cores the training needs them all.
const CORES_MIN: usize = 4;

/// Whether there are cores to spare.
pub fn has_spare_cores() -> bool {
    thread::available_parallelism().is_ok_and(|cores| cores.get() >= CORES_MIN)
}

/// What both come to, at the same time if there are cores to spare. A panic is passed on.
pub fn both<A: Send, B>(one: impl FnOnce() -> A + Send, other: impl FnOnce() -> B) -> (A, B) {
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

/// Does something with each of some things, at the same time if there are cores to spare.
pub(crate) fn each<T: Send>(things: &mut [T], work: &(impl Fn(&mut T) + Sync)) {
    match things {
        [] => {}
        [one] => work(one),
        [one, others @ ..] => {
            both(|| work(one), || each(others, work));
        }
    }
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

    #[test]
    fn each_gets_its_turn_once() {
        let mut numbers = [1, 2, 3, 4, 5];
        each(&mut numbers, &|number: &mut i32| *number *= 10);
        assert_eq!(numbers, [10, 20, 30, 40, 50]);
    }
}
