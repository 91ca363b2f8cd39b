//! Whether a recorded step says nothing that cannot be, and where it does.

use super::{FileMirror, OpMirror, TensorMirror};
use crate::check::OP_US_MAX;
use crate::error::RecordedFault;

/// No tensor is larger.
const TENSOR_BYTES_MAX: u64 = 1 << 48;

/// Finds whatever the format does not allow, and where.
pub(super) fn check(file: &FileMirror<'_>) -> Result<(), RecordedFault> {
    if file.ops.is_empty() {
        return Err(fault("ops", "there are none"));
    }
    if let Some(step_ms) = file.meta.step_ms
        && !(step_ms.is_finite() && step_ms >= 0.0 && step_ms * 1e3 <= OP_US_MAX)
    {
        return Err(fault("meta.step_ms", format!("{step_ms} is not a valid time")));
    }
    check_tensors(file)?;
    let mut open: Vec<usize> = Vec::new();
    for (index, op) in file.ops.iter().enumerate() {
        let most = if index > 0 { file.ops[index - 1].depth + 1 } else { 0 };
        if op.depth > most {
            let what = format!("{} is more than one below the op before it", op.depth);
            return Err(fault(format!("ops[{index}].depth"), what));
        }
        if !(0.0..=OP_US_MAX).contains(&op.us) {
            return Err(fault(
                format!("ops[{index}].us"),
                format!("{} is not a valid time of an op", op.us),
            ));
        }
        for ended in open.drain(op.depth as usize..).rev() {
            check_outputs(file, ended, index)?;
        }
        open.push(index);
        check_uses(file, index, "reads", &op.reads)?;
        check_uses(file, index, "writes", &op.writes)?;
        check_known(file, index, "outputs", &op.outputs)?;
    }
    open.into_iter().rev().try_for_each(|ended| check_outputs(file, ended, file.ops.len()))
}

fn fault(place: impl Into<String>, what: impl Into<String>) -> RecordedFault {
    RecordedFault { place: place.into(), what: what.into() }
}

fn check_tensors(file: &FileMirror<'_>) -> Result<(), RecordedFault> {
    let op_count = file.ops.len() as i64;
    for (index, tensor) in file.tensors.iter().enumerate() {
        let place = |field: &str| format!("tensors[{index}].{field}");
        if tensor.bytes > TENSOR_BYTES_MAX {
            return Err(fault(place("bytes"), format!("{} is not a size", tensor.bytes)));
        }
        for (field, op) in [("alloc", tensor.alloc), ("free", tensor.free)] {
            if !(-1..=op_count).contains(&op) {
                let what = format!("there is no op {op}, only {op_count} from 0 on, and -1");
                return Err(fault(place(field), what));
            }
        }
        if tensor.free >= 0 && tensor.free < tensor.alloc {
            let what = format!("{} is before its alloc, {}", tensor.free, tensor.alloc);
            return Err(fault(place("free"), what));
        }
    }
    Ok(())
}

/// Whether an op's tensors exist at all.
fn check_known(
    file: &FileMirror<'_>,
    op: usize,
    field: &str,
    tensors: &[u32],
) -> Result<(), RecordedFault> {
    let count = file.tensors.len();
    match tensors.iter().find(|&&tensor| tensor as usize >= count) {
        Some(tensor) => {
            let what = format!("there is no tensor {tensor}, only {count} from 0 on");
            Err(fault(format!("ops[{op}].{field}"), what))
        }
        None => Ok(()),
    }
}

/// What an op reads and mutates lives when the op begins.
fn check_uses(
    file: &FileMirror<'_>,
    op: usize,
    field: &str,
    tensors: &[u32],
) -> Result<(), RecordedFault> {
    check_known(file, op, field, tensors)?;
    let at = op as i64;
    for &tensor in tensors {
        let TensorMirror { alloc, free, .. } = file.tensors[tensor as usize];
        let what = match (alloc > at, (0..=at).contains(&free)) {
            (true, _) => format!("tensor {tensor} is allocated later, at {alloc}"),
            (_, true) => format!("tensor {tensor} is freed before, at {free}"),
            _ => continue,
        };
        return Err(fault(format!("ops[{op}].{field}"), what));
    }
    Ok(())
}

/// What an op returns lives when the op ends, which is before the record `end`.
fn check_outputs(file: &FileMirror<'_>, op: usize, end: usize) -> Result<(), RecordedFault> {
    let OpMirror { outputs, .. } = &file.ops[op];
    let end = end as i64;
    for &tensor in outputs {
        let TensorMirror { alloc, free, .. } = file.tensors[tensor as usize];
        let what = match (alloc > end, (0..end).contains(&free)) {
            (true, _) => format!("tensor {tensor} is allocated after the op, at {alloc}"),
            (_, true) => format!("tensor {tensor} is freed inside the op, at {free}"),
            _ => continue,
        };
        return Err(fault(format!("ops[{op}].outputs"), what));
    }
    Ok(())
}
