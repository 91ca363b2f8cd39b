//! Operators that work on each element by itself.

use super::Operator;
use super::call::{Call, Output, Tensor, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

/// Of `Gelu`, as Ascend's operator computes it: the form with tanh.
const GELU_SCALE: f32 = 0.797_884_6;
const GELU_CUBE: f32 = 0.044_715;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "Add" => |call| binary(call, |a, b| a + b, i64::wrapping_add),
        "Sub" => |call| binary(call, |a, b| a - b, i64::wrapping_sub),
        "Mul" => |call| binary(call, |a, b| a * b, i64::wrapping_mul),
        "RealDiv" => |call| floats(call, |[a, b]| a / b),
        "Less" => |call| compare(call, |a, b| a < b, |a, b| a < b),
        "Equal" => |call| compare(call, |a, b| a == b, |a, b| a == b),
        "NotEqual" => |call| compare(call, |a, b| a != b, |a, b| a != b),
        "Abs" => |call| floats(call, |[x]| x.abs()),
        "Neg" => |call| floats(call, |[x]| -x),
        "Exp" => |call| floats(call, |[x]| x.exp()),
        "Sqrt" => |call| floats(call, |[x]| x.sqrt()),
        "Square" => |call| floats(call, |[x]| x * x),
        "Tanh" => |call| floats(call, |[x]| x.tanh()),
        "Relu" => |call| floats(call, |[x]| x.max(0.0)),
        "Gelu" => |call| floats(call, |[x]| gelu(x)),
        // The forward result comes as well, and is not needed.
        "GeluGrad" => |call| floats(call, |[grad, x, _]| grad * gelu_slope(x)),
        "AxpyV2" => |call| floats(call, |[a, b, alpha]| a + alpha * b),
        "Lerp" => |call| floats(call, |[from, to, weight]| from + weight * (to - from)),
        "Addcmul" => |call| floats(call, |[x, a, b, value]| x + value * a * b),
        "Addcdiv" => |call| floats(call, |[x, a, b, value]| x + value * (a / b)),
        "IsFinite" => |call| {
            let (_, values) = call.floats(0)?;
            whole(Values::Ints(values.iter().map(|x| i64::from(x.is_finite())).collect()))
        },
        "Cast" => cast,
        "MaskedFill" => |call| select(call, 1, 2, 0),
        "Select" => |call| select(call, 0, 1, 2),
        _ => return None,
    })
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + (GELU_SCALE * (x + GELU_CUBE * x * x * x)).tanh())
}

fn gelu_slope(x: f32) -> f32 {
    let tanh = (GELU_SCALE * (x + GELU_CUBE * x * x * x)).tanh();
    let inner = GELU_SCALE * (1.0 + 3.0 * GELU_CUBE * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
}

/// All inputs in their common shape.
fn aligned<const N: usize>(call: &Call) -> Outcome<[Tensor; N]> {
    let inputs: Vec<Tensor> = (0..N).map(|index| call.input(index)).collect::<Outcome<_>>()?;
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| input.dims.as_slice()).collect();
    let dims = shape::broadcast(&shapes)?;
    let broadcast = |input: Tensor| {
        let values = match input.dims == dims {
            true => input.values,
            false => input.values.pick(shape::broadcast_places(&input.dims, &dims).into_iter()),
        };
        Tensor { dims: dims.clone(), values }
    };
    let inputs: Vec<Tensor> = inputs.into_iter().map(broadcast).collect();
    Ok(inputs.try_into().expect("as many as were taken"))
}

fn floats<const N: usize>(call: &Call, body: impl Fn([f32; N]) -> f32) -> Outcome<Vec<Output>> {
    let mut columns = Vec::with_capacity(N);
    for input in aligned::<N>(call)? {
        match input.values {
            Values::Floats(values) => columns.push(values),
            Values::Ints(_) => return call.refuse("an input holds no floats"),
        }
    }
    let count = columns[0].len();
    let row = |at: usize| std::array::from_fn(|input| columns[input][at]);
    whole(Values::Floats((0..count).map(|at| body(row(at))).collect()))
}

fn binary(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> f32,
    of_ints: impl Fn(i64, i64) -> i64,
) -> Outcome<Vec<Output>> {
    let [a, b] = aligned(call)?;
    whole(match (a.values, b.values) {
        (Values::Floats(a), Values::Floats(b)) => {
            Values::Floats(a.into_iter().zip(b).map(|(a, b)| of_floats(a, b)).collect())
        }
        (Values::Ints(a), Values::Ints(b)) => {
            Values::Ints(a.into_iter().zip(b).map(|(a, b)| of_ints(a, b)).collect())
        }
        _ => return call.refuse("one input holds floats, the other does not"),
    })
}

fn compare(
    call: &Call,
    of_floats: impl Fn(f32, f32) -> bool,
    of_ints: impl Fn(i64, i64) -> bool,
) -> Outcome<Vec<Output>> {
    let [a, b] = aligned(call)?;
    let truths: Vec<bool> = match (a.values, b.values) {
        (Values::Floats(a), Values::Floats(b)) => {
            a.into_iter().zip(b).map(|(a, b)| of_floats(a, b)).collect()
        }
        (Values::Ints(a), Values::Ints(b)) => {
            a.into_iter().zip(b).map(|(a, b)| of_ints(a, b)).collect()
        }
        _ => return call.refuse("one input holds floats, the other does not"),
    };
    whole(Values::Ints(truths.into_iter().map(i64::from).collect()))
}

fn cast(call: &Call) -> Outcome<Vec<Output>> {
    let target = call.output(0)?.data_type;
    whole(match (call.input(0)?.values, target.is_float()) {
        (Values::Ints(values), true) => {
            Values::Floats(values.into_iter().map(|value| value as f32).collect())
        }
        (Values::Floats(values), false) => {
            Values::Ints(values.into_iter().map(|value| value as i64).collect())
        }
        (values, _) => values,
    })
}

/// Where the condition holds one input, elsewhere another.
fn select(call: &Call, condition: usize, yes: usize, no: usize) -> Outcome<Vec<Output>> {
    let inputs = aligned::<3>(call)?;
    let Values::Ints(condition) = &inputs[condition].values else {
        return call.refuse("the condition holds no truth values");
    };
    whole(match (&inputs[yes].values, &inputs[no].values) {
        (Values::Floats(yes), Values::Floats(no)) => Values::Floats(choose(condition, yes, no)),
        (Values::Ints(yes), Values::Ints(no)) => Values::Ints(choose(condition, yes, no)),
        _ => return call.refuse("one input holds floats, the other does not"),
    })
}

fn choose<T: Copy>(condition: &[i64], yes: &[T], no: &[T]) -> Vec<T> {
    let rows = condition.iter().zip(yes).zip(no);
    rows.map(|((&holds, &yes), &no)| if holds != 0 { yes } else { no }).collect()
}
