//! What the engine did: counters, reasons, files.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;

use adaptive::{MemoryCalls, Peak, save, save_bytes, save_lanes, save_steps, save_trace};

use crate::advice::{advise, deferral};
use crate::context::{self, Context};
use crate::explain::{explain, held};
use crate::failure::{Failure, code, guard, text_of};
use crate::shown::ShownStep;

/// Of a step with more ops, reports do not say what other caps would cost: a plan for each takes
/// too long at the end of a training.
const CURVE_OPS_MAX: usize = 20_000;

/// `smartswap_bytes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SmartswapBytes {
    current: u64,
    peak: u64,
}

/// `smartswap_stats`.
#[derive(Debug)]
#[repr(C)]
pub struct SmartswapStats {
    struct_size: u32,
    stage: u32,
    steps: u64,
    limit_bytes: u64,
    requested: SmartswapBytes,
    allocated: SmartswapBytes,
    active: SmartswapBytes,
    reserved: SmartswapBytes,
    pinned_host: SmartswapBytes,
    used_host: SmartswapBytes,
    allocations: u64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    recomputed_ops: u64,
    kept_bytes: u64,
    misses: u64,
    rescues: u64,
    recalls: u64,
    host_waits: u64,
    stall_us: f64,
    last_step_us: f64,
    plan: u64,
    steps_by_stage: [u64; 3],
    memory_calls: [u64; 4],
    last_memory_calls: [u64; 4],
    branches: u64,
    unlimited_us: f64,
    search_steps: u64,
    reported_steps: u64,
}

fn in_order(calls: MemoryCalls) -> [u64; 4] {
    [calls.created, calls.released, calls.mapped, calls.unmapped]
}

impl From<Peak> for SmartswapBytes {
    fn from(bytes: Peak) -> SmartswapBytes {
        SmartswapBytes { current: bytes.current, peak: bytes.peak }
    }
}

/// See `smartswap.h`.
///
/// # Safety
/// `stats` is null or points to one whose `struct_size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_get_stats(stats: *mut SmartswapStats) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a pointer to one that nobody else uses meanwhile.
        let stats = unsafe { stats.as_mut() }.ok_or_else(|| Failure::usage("stats is NULL"))?;
        if stats.struct_size != size_of::<SmartswapStats>() as u32 {
            return Err(Failure::usage("set struct_size to sizeof(smartswap_stats)"));
        }
        *stats = read(&*context::current()?)?;
        Ok(())
    })
}

fn read(context: &Context) -> Result<SmartswapStats, Failure> {
    let memory = context.engine.memory_stats()?;
    let host = context.engine.host_stats()?;
    let course = context.course();
    let totals = &course.totals;
    let [requested, allocated, active, reserved] = totals.with_peaks(&memory);
    Ok(SmartswapStats {
        struct_size: size_of::<SmartswapStats>() as u32,
        stage: context.stage(&course) as u32,
        steps: totals.steps(),
        limit_bytes: context.settings.machine.limit_bytes,
        requested: requested.into(),
        allocated: allocated.into(),
        active: active.into(),
        reserved: reserved.into(),
        pinned_host: host.pinned_bytes.into(),
        used_host: host.used_bytes.into(),
        allocations: memory.allocations,
        swapped_out_bytes: totals.swapped_out_bytes,
        swapped_in_bytes: totals.swapped_in_bytes,
        recomputed_ops: totals.recomputed_ops,
        kept_bytes: context.engine.kept_bytes()?,
        misses: totals.misses,
        rescues: totals.rescues,
        recalls: totals.recalls,
        host_waits: totals.host_waits,
        stall_us: totals.stall_us,
        last_step_us: totals.last_step_us,
        plan: course.session.plan_number(),
        steps_by_stage: totals.steps_by_stage,
        memory_calls: in_order(memory.calls),
        last_memory_calls: in_order(totals.last_calls),
        branches: totals.branches,
        unlimited_us: course.shown.as_ref().map_or(0.0, ShownStep::unlimited_us),
        search_steps: u64::from(context.settings.policy.search_steps),
        reported_steps: totals.reported_steps,
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_reset_peaks() -> c_int {
    code(|| {
        let context = context::current()?;
        context.course().totals.reset_peaks();
        Ok(context.engine.reset_peaks()?)
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_explain() -> *mut c_char {
    text_for_c(guard(|| {
        let context = context::current()?;
        context.drain()?;
        Ok(explain(&context)?.to_string())
    }))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_advise() -> *mut c_char {
    text_for_c(guard(|| {
        let context = context::current()?;
        context.drain()?;
        Ok(advise(&context)?.to_string())
    }))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_deferral() -> *mut c_char {
    text_for_c(guard(|| {
        let context = context::current()?;
        context.drain()?;
        Ok(deferral(&context)?.to_string())
    }))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_held() -> *mut c_char {
    text_for_c(guard(|| Ok(held(&*context::current()?)?.to_string())))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_take_news() -> *mut c_char {
    text_for_c(guard(|| {
        let news = context::current()?.course().session.take_news();
        Ok(news.iter().map(|news| format!("{news}\n")).collect())
    }))
}

/// A text that C frees, or null if there is none.
fn text_for_c(text: Result<String, c_int>) -> *mut c_char {
    let zero = || Failure::usage("a name contains a NUL character");
    let text = text.and_then(|text| guard(|| CString::new(text).map_err(|_| zero())));
    text.map_or(ptr::null_mut(), CString::into_raw)
}

/// See `smartswap.h`.
///
/// # Safety
/// `text` is null or came from a function of this module that makes one, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: it came from `CString::into_raw` and is freed once, as the caller promises.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// See `smartswap.h`.
///
/// # Safety
/// `path` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_save_trace(path: *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a zero at the end.
        let path = unsafe { path_of(path) }?;
        let context = context::current()?;
        context.drain()?;
        let none = "no step has been recorded yet: run a few steps first";
        let trace = context.course().trace.clone().ok_or_else(|| Failure::usage(none))?;
        Ok(save_trace(path, &trace)?)
    })
}

/// See `smartswap.h`.
///
/// # Safety
/// `folder` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_save_report(folder: *const c_char) -> c_int {
    code(|| {
        // SAFETY: the caller promises null or a zero at the end.
        let folder = unsafe { path_of(folder) }?;
        let context = context::current()?;
        context.drain()?;
        let failed = |error: std::io::Error| {
            Failure::settings(format!("{} cannot be made: {error}", folder.display()))
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let explained = explain(&context)?;
        save_bytes(&folder.join("explain.json"), format!("{explained:#}").as_bytes())?;
        let course = context.course();
        let shown = course.shown.as_ref();
        let shown_trace = shown.map(ShownStep::trace);
        let [trace, plan, steps, lanes] =
            ["trace.json", "plan.json", "steps.json", "lanes.json"].map(|name| folder.join(name));
        match &shown_trace {
            Some(shown_trace) => save_trace(&trace, shown_trace)?,
            None => remove(&trace)?,
        }
        match shown.and_then(|shown| shown.plan.as_ref()) {
            Some(step_plan) => save(&plan, step_plan)?,
            None => remove(&plan)?,
        }
        match shown.and_then(|shown| Some((shown, shown.lanes.as_deref()?))) {
            Some((shown, measured)) => {
                let machine = course.with_link(context.settings.machine);
                save_lanes(&lanes, measured, &shown.predicted(&machine))?;
            }
            None => remove(&lanes)?,
        }
        match course.session.policy().recorded_sizes() {
            [] => remove(&steps)?,
            sizes => save_steps(&steps, sizes.iter().map(|step| &**step))?,
        }
        let has_curve = shown_trace.is_some_and(|trace| trace.ops.len() <= CURVE_OPS_MAX);
        drop(course);
        let caps = folder.join("caps.json");
        match has_curve {
            true => Ok(save_bytes(&caps, format!("{:#}", advise(&context)?).as_bytes())?),
            false => remove(&caps),
        }
    })
}

/// Removes what an earlier run left: it is about another step.
fn remove(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::settings(format!("{} cannot be removed: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// # Safety
/// `path` is null or ends with a zero, and lives as long as the result.
unsafe fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(Failure::usage("the path is NULL"));
    }
    // SAFETY: not null, so the caller promises a zero at the end.
    let path = unsafe { CStr::from_ptr(path) };
    let text = text_of(Some(path), "the path")?;
    Ok(Path::new(text.expect("given")))
}
