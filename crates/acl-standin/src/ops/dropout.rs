//! Dropout: which elements stay, drawn from a seed, and what becomes of them.

use npu_sys::devices::pattern_word;

use super::Operator;
use super::call::{Call, Output, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    match name {
        "StatelessDropOutGenMask" => Some(mask),
        "DropOutDoMask" => Some(apply),
        _ => None,
    }
}

/// The bits of a draw that a float tells apart.
const DRAW_BITS: u32 = 24;

/// A number in 0..1.
fn draw(seed: u64, place: usize) -> f32 {
    let bits = pattern_word(seed, place as u64) >> (u64::BITS - DRAW_BITS);
    bits as f32 / (1_u64 << DRAW_BITS) as f32
}

/// The share of elements that stay, in an input.
fn kept_share(call: &Call, index: usize) -> Outcome<f32> {
    match call.floats(index)?.1[..] {
        [share] if (0.0..=1.0).contains(&share) => Ok(share),
        _ => call.refuse(format!("input {index} is no share")),
    }
}

/// Refuses a mask that has not a bit for each element.
fn check_mask(call: &Call, size_bytes: usize, count: usize) -> Outcome {
    match size_bytes * 8 < count {
        true => call.refuse(format!("{size_bytes} bytes are no bits for {count} elements")),
        false => Ok(()),
    }
}

/// One bit for each element, set where it stays.
fn mask(call: &Call) -> Outcome<Vec<Output>> {
    let (count, share) = (shape::count(&call.sizes(0)?), kept_share(call, 1)?);
    let mut seed = 0_u64;
    for index in 2..call.inputs.len() {
        for number in call.ints(index)? {
            seed = pattern_word(seed, number as u64);
        }
    }
    let mut bytes = vec![0; shape::count(&call.output(0)?.dims)];
    check_mask(call, bytes.len(), count)?;
    for place in (0..count).filter(|&place| draw(seed, place) < share) {
        bytes[place / 8] |= 1 << (place % 8);
    }
    whole(Values::Ints(bytes))
}

/// What stays, larger by what is gone; the rest is zero.
fn apply(call: &Call) -> Outcome<Vec<Output>> {
    let ((_, mut values), bytes, share) = (call.floats(0)?, call.ints(1)?, kept_share(call, 2)?);
    check_mask(call, bytes.len(), values.len())?;
    for (place, value) in values.iter_mut().enumerate() {
        let stays = bytes[place / 8] >> (place % 8) & 1 != 0;
        *value = if stays { *value / share } else { 0.0 };
    }
    whole(Values::Floats(values))
}
