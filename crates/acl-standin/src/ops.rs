//! What the device's operators compute.
//!
//! Each is a function from the values of its inputs to those of its outputs. Numbers of 16 bits
//! are computed with in 32 and rounded once, when they are stored. The bits of a result depend on
//! the bits of the inputs alone, so an operator that runs again makes the same ones.

mod arithmetic;
mod call;
mod dropout;
mod embedding;
mod loss;
mod movement;
mod norm;
mod padding;
mod products;
mod reductions;
mod shape;
mod softmax;
mod values;

use crate::failure::{Outcome, RT_FEATURE_NOT_SUPPORT, refuse};

pub(crate) use call::{Call, Elements, Operand};
pub(crate) use values::DataType;

use call::Output;

/// An operator: from a call to what becomes of each of its outputs.
type Operator = fn(&Call) -> Outcome<Vec<Output>>;

/// The operator of a name.
fn find(name: &str) -> Option<Operator> {
    [
        arithmetic::find,
        dropout::find,
        embedding::find,
        loss::find,
        movement::find,
        norm::find,
        padding::find,
        products::find,
        reductions::find,
        softmax::find,
    ]
    .into_iter()
    .find_map(|find| find(name))
}

/// Refuses operators that there are not.
pub(crate) fn check(call: &Call) -> Outcome {
    match find(&call.name) {
        Some(_) => Ok(()),
        None => refuse(RT_FEATURE_NOT_SUPPORT, format!("there is no operator {}", call.name)),
    }
}

/// Runs a call whose time has come.
///
/// # Safety
/// The operands' memory is there, and no other work that conflicts uses it.
pub(crate) unsafe fn run(call: &Call) -> Outcome {
    let operator = find(&call.name).expect("checked when it was called");
    let outputs = operator(call)?;
    if outputs.len() != call.outputs.len() {
        return call.refuse(format!("it makes {} outputs", outputs.len()));
    }
    for (index, output) in outputs.into_iter().enumerate() {
        call.store(index, output)?;
    }
    Ok(())
}
