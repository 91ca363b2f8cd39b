//! The negative log likelihood of targets, which is cross entropy's second half.

use super::Operator;
use super::call::{Call, Output, whole};
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "NLLLoss" => forward,
        "NLLLossGrad" => backward,
        _ => return None,
    })
}

/// Of each row that counts: its number, its target, and the weight of that.
struct Rows {
    counted: Vec<(usize, usize, f32)>,
    row_count: usize,
    classes: usize,
}

impl Rows {
    fn new(call: &Call, dims: &[usize], targets: usize, weights: usize) -> Outcome<Rows> {
        let (targets, (_, weights)) = (call.ints(targets)?, call.floats(weights)?);
        let ignored = call.int("ignore_index")?;
        let &[row_count, classes] = dims else {
            return call.refuse("the input is not rows of classes");
        };
        if targets.len() != row_count || weights.len() != classes {
            return call.refuse("targets or weights do not fit");
        }
        let mut counted = Vec::new();
        for (row, &target) in targets.iter().enumerate().filter(|(_, target)| **target != ignored) {
            match usize::try_from(target) {
                Ok(target) if target < classes => counted.push((row, target, weights[target])),
                _ => return call.refuse(format!("there is no class {target} of {classes}")),
            }
        }
        Ok(Rows { counted, row_count, classes })
    }
}

/// What the losses of all rows become: their mean, their sum, or each by itself.
fn is_mean(call: &Call) -> Outcome<bool> {
    match call.text("reduction")? {
        "mean" => Ok(true),
        "sum" => Ok(false),
        other => call.refuse(format!("the reduction '{other}': only mean and sum")),
    }
}

/// The loss and the weight of all rows.
fn forward(call: &Call) -> Outcome<Vec<Output>> {
    let (dims, x) = call.floats(0)?;
    let rows = Rows::new(call, &dims, 1, 2)?;
    let (mut loss, mut total) = (0.0_f64, 0.0_f64);
    for &(row, target, weight) in &rows.counted {
        loss -= f64::from(weight) * f64::from(x[row * rows.classes + target]);
        total += f64::from(weight);
    }
    if is_mean(call)? {
        loss /= total;
    }
    Ok([loss, total].map(|value| Output::Whole(Values::Floats(vec![value as f32]))).into())
}

fn backward(call: &Call) -> Outcome<Vec<Output>> {
    let (dims, _) = call.floats(0)?;
    let ((_, grad), (_, total)) = (call.floats(1)?, call.floats(4)?);
    let rows = Rows::new(call, &dims, 2, 3)?;
    let ([grad], [total]) = (&grad[..], &total[..]) else {
        return call.refuse("the gradient or the total is not one number");
    };
    let share = if is_mean(call)? { grad / total } else { *grad };
    let mut of_x = vec![0.0; rows.row_count * rows.classes];
    for (row, target, weight) in rows.counted {
        of_x[row * rows.classes + target] = -weight * share;
    }
    whole(Values::Floats(of_x))
}
