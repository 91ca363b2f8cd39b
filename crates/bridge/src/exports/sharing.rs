//! Judging steps together with other ranks: the numbers that a front end carries.

use std::ffi::c_int;

use adaptive::{Figures, Round};

use crate::context;
use crate::failure::{Failure, code};

/// `SMARTSWAP_ALONE`.
const ALONE: c_int = 0;
/// `SMARTSWAP_FOLLOWS`.
const FOLLOWS: c_int = 1;
/// `SMARTSWAP_LEADS`.
const LEADS: c_int = 2;

/// `smartswap_round`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum SmartswapRound {
    /// `SMARTSWAP_LATER`.
    Later = 0,
    /// `SMARTSWAP_NEXT_STEP`.
    NextStep = 1,
    /// `SMARTSWAP_AT_ONCE`.
    AtOnce = 2,
    /// `SMARTSWAP_TIMES`.
    Times = 3,
}

impl SmartswapRound {
    fn of(round: Round) -> (SmartswapRound, u32) {
        match round {
            Round::Later => (SmartswapRound::Later, 0),
            Round::NextStep => (SmartswapRound::NextStep, 0),
            Round::AtOnce => (SmartswapRound::AtOnce, 0),
            Round::Times(count) => {
                (SmartswapRound::Times, u32::try_from(count).expect("fewer than 2^32 ops"))
            }
        }
    }
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_share(role: c_int) -> c_int {
    code(|| {
        let context = context::current()?;
        match role {
            ALONE => context.part(),
            FOLLOWS | LEADS => context.share(role == LEADS),
            _ => Err(Failure::usage("role is not one of smartswap_role")),
        }
    })
}

/// See `smartswap.h`.
///
/// # Safety
/// `figures` is null or points to memory for as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_get_figures(figures: *mut f64, n_figures: u32) -> c_int {
    code(|| {
        check_count(n_figures)?;
        let own = context::current()?.course().session.figures()?;
        // SAFETY: the caller promises null or memory for as many, which nobody else uses now.
        unsafe { fill(figures, own.numbers()) }
    })
}

/// See `smartswap.h`.
///
/// # Safety
/// `worst` is null or points to as many numbers; `round` and `n_times` are null or point to
/// memory for one each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_agree(
    worst: *const f64,
    n_figures: u32,
    round: *mut SmartswapRound,
    n_times: *mut u32,
) -> c_int {
    code(|| {
        check_count(n_figures)?;
        if round.is_null() || n_times.is_null() {
            return Err(Failure::usage("round or n_times is NULL"));
        }
        // SAFETY: the caller promises null or as many numbers, which nobody changes meanwhile.
        let worst = unsafe { numbers(worst, n_figures) }?;
        let worst = worst.try_into().expect("the count was compared");
        let next = context::current()?.course().session.agree(&Figures::from_numbers(worst))?;
        let (next, count) = SmartswapRound::of(next);
        // SAFETY: not null, so the caller promises memory for one.
        unsafe { round.write(next) };
        // SAFETY: as above.
        unsafe { n_times.write(count) };
        Ok(())
    })
}

/// See `smartswap.h`.
///
/// # Safety
/// `times` is null or points to memory for as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_get_times(times: *mut f64, n_times: u32) -> c_int {
    code(|| {
        let own = context::current()?.course().session.times()?;
        if own.len() != n_times as usize {
            return Err(Failure::usage("n_times is not what smartswap_agree said"));
        }
        // SAFETY: the caller promises null or memory for as many, which nobody else uses now.
        unsafe { fill(times, &own) }
    })
}

/// See `smartswap.h`.
///
/// # Safety
/// `times` is null or points to as many numbers; `round` is null or points to memory for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_agree_times(
    times: *const f64,
    n_times: u32,
    round: *mut SmartswapRound,
) -> c_int {
    code(|| {
        if round.is_null() {
            return Err(Failure::usage("round is NULL"));
        }
        // SAFETY: the caller promises null or as many numbers, which nobody changes meanwhile.
        let times = unsafe { numbers(times, n_times) }?;
        let next = context::current()?.course().session.agree_times(times)?;
        // SAFETY: not null, so the caller promises memory for one.
        unsafe { round.write(SmartswapRound::of(next).0) };
        Ok(())
    })
}

fn check_count(n_figures: u32) -> Result<(), Failure> {
    if n_figures as usize == Figures::COUNT {
        return Ok(());
    }
    Err(Failure::usage(
        "n_figures is not SMARTSWAP_FIGURES of the header that came with the library",
    ))
}

/// # Safety
/// `memory` is null or points to memory for as many numbers, which nobody else uses.
unsafe fn fill(memory: *mut f64, values: &[f64]) -> Result<(), Failure> {
    if memory.is_null() {
        return Err(Failure::usage("the memory for the numbers is NULL"));
    }
    // SAFETY: not null, so the caller promises memory for as many.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), memory, values.len()) };
    Ok(())
}

/// # Safety
/// `memory` is null or points to as many numbers, which live and stay as long as the result.
unsafe fn numbers<'a>(memory: *const f64, count: u32) -> Result<&'a [f64], Failure> {
    if memory.is_null() {
        return Err(Failure::usage("the numbers are NULL"));
    }
    // SAFETY: not null, so the caller promises as many numbers.
    let values = unsafe { std::slice::from_raw_parts(memory, count as usize) };
    if values.iter().any(|value| value.is_nan()) {
        return Err(Failure::usage("one of the numbers is NaN"));
    }
    Ok(values)
}
