//! Visiting: reading all memory that lives, wherever it is.

use std::ffi::{c_int, c_void};
use std::ptr;

use adaptive::{AccessMode, BlockId, Error, OpName, Residency};

use crate::context::{self, Context};
use crate::failure::{Failure, code};

/// `smartswap_visitor`.
pub type Visitor = unsafe extern "C" fn(*mut c_void, *mut c_void, u64);

const VISIT: OpName = OpName::new("smartswap::visit");

/// See `smartswap.h`.
///
/// # Safety
/// `visitor` may be called with `argument`, and only reads the memory that it is called with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_visit(visitor: Option<Visitor>, argument: *mut c_void) -> c_int {
    code(|| {
        let visitor = visitor.ok_or_else(|| Failure::usage("the visitor is NULL"))?;
        visit(&*context::current()?, |start, size_bytes| {
            let start = ptr::with_exposed_provenance_mut(start as usize);
            // SAFETY: the caller promises a function that may be called so; the memory is mapped
            // and stays until it returns.
            unsafe { visitor(argument, start, size_bytes) };
        })
    })
}

/// `smartswap_lister`.
pub type Lister = unsafe extern "C" fn(*mut c_void, *mut c_void, u64, c_int);

/// See `smartswap.h`.
///
/// # Safety
/// `lister` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_list(lister: Option<Lister>, argument: *mut c_void) -> c_int {
    code(|| {
        let lister = lister.ok_or_else(|| Failure::usage("the lister is NULL"))?;
        let context = context::current()?;
        for (start, size_bytes, block) in context.blocks.all() {
            let is_resident = match block {
                Some(block) => is_resident(&context, block)?,
                None => false,
            };
            let start = ptr::with_exposed_provenance_mut(start as usize);
            // SAFETY: the caller promises a function that may be called so.
            unsafe { lister(argument, start, size_bytes, c_int::from(is_resident)) };
        }
        Ok(())
    })
}

/// Whether its bytes are on the device. One that another thread has freed meanwhile has none.
fn is_resident(context: &Context, block: BlockId) -> Result<bool, Failure> {
    match context.engine.residency(block) {
        Ok(residency) => Ok(matches!(residency, Residency::Resident | Residency::Arriving)),
        Err(Error::Freed) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Has each live allocation where it can be read while `body` runs, by address.
fn visit(context: &Context, body: impl Fn(u64, u64)) -> Result<(), Failure> {
    let mut ops = context.engine.op_stack();
    for (start, size_bytes, block) in context.blocks.all() {
        // One at a time: all of them need not fit.
        ops.begin_aside(VISIT, context.engine.compute_stream())?;
        if let Some(block) = block
            && !context.engine.is_held(block)?
        {
            ops.touch(block, AccessMode::Read)?;
        }
        body(start, size_bytes);
        ops.end()?;
    }
    Ok(())
}
