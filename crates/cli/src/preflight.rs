//! What a model needs, found by running it without doing its work.
//!
//! Memory depends on the order of calls alone, so a pretended step takes exactly the memory of a
//! real one.

use adaptive::{Error, Signature};

use crate::device::{Device, Setup, Time};
use crate::gpt::call::{Ops, Work};
use crate::gpt::model::Model;
use crate::gpt::shape::Shape;
use crate::text::Batch;

/// The first step finds the cache empty, the second is like all that follow.
const STEPS: usize = 2;

/// What a pretended run showed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Need {
    /// Physical device bytes at the highest.
    pub(crate) peak_bytes: u64,
    /// The fingerprint of its steps.
    pub(crate) signature: Signature,
    /// About how long a step takes on one core, in microseconds.
    pub(crate) step_us: f64,
    /// Whether some block had to make room for another.
    pub(crate) is_short: bool,
}

/// Runs a model for a few steps without doing its work; blocks move on demand.
///
/// # Errors
/// [`Error::OutOfMemory`] if the model does not train under the cap whatever moves.
pub(crate) fn measure(shape: Shape, setup: &Setup) -> Result<Need, Error> {
    let device = setup.open(Time::Virtual)?;
    let Device { engine, .. } = &device;
    let mut ops = Ops::new(engine, Work::Pretended);
    let mut model = Model::start(&mut ops, shape, 0)?;
    let mut reports = engine.end_step()?;
    for _ in 0..STEPS {
        model.step(&mut ops, Batch::blank(shape.batch, shape.seq))?;
        reports.extend(engine.end_step()?);
    }
    reports.extend(engine.drain_reports()?);
    let last = reports.last().expect("each step reports");
    Ok(Need {
        peak_bytes: device.peak_bytes()?,
        signature: last.signature,
        step_us: last.device_us,
        is_short: reports.iter().any(|r| r.counters.rescues + r.counters.misses > 0),
    })
}

/// The smallest cap at which the model trains, if one is found, from a cap at which it does not.
pub(crate) fn smallest_limit(shape: Shape, setup: &Setup) -> Option<u64> {
    /// Each try gets past at least one allocation that failed; few of them are ever larger than
    /// all before.
    const TRIES: usize = 100;
    let mut limit_bytes = setup.enforced_bytes().max(setup.ground.granularity_bytes);
    for _ in 0..TRIES {
        let setup = Setup { limit_bytes: Some(limit_bytes), ..*setup };
        match measure(shape, &setup) {
            Ok(_) => return Some(limit_bytes),
            Err(Error::OutOfMemory(report)) if !report.host_full => {
                let more_bytes = limit_bytes.checked_add(report.missing_bytes.max(1))?;
                limit_bytes = setup.ground.round_up(more_bytes);
            }
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Ground;
    use crate::gpt::shape::{BYTE_VOCAB, Head};

    const SHAPE: Shape = Shape {
        layers: 3,
        hidden: 64,
        heads: 2,
        seq: 64,
        batch: 16,
        vocab: BYTE_VOCAB,
        head: Head::Tied,
    };
    const ROOMY: Setup = Setup {
        limit_bytes: None,
        host_limit_bytes: 1 << 30,
        link_bytes_per_s: 2 << 30,
        ground: Ground::SOFTWARE,
    };

    #[test]
    fn a_model_trains_from_its_smallest_cap_on_and_not_below() {
        let roomy = measure(SHAPE, &ROOMY).unwrap();
        assert!(!roomy.is_short && roomy.peak_bytes > SHAPE.persistent_bytes());
        let tiny = Setup { limit_bytes: Some(1 << 20), ..ROOMY };
        assert!(matches!(measure(SHAPE, &tiny), Err(Error::OutOfMemory(_))));
        let least_bytes = smallest_limit(SHAPE, &tiny).unwrap();
        assert!(least_bytes < roomy.peak_bytes / 2, "{least_bytes} of {}", roomy.peak_bytes);
        let least = Setup { limit_bytes: Some(least_bytes), ..ROOMY };
        let need = measure(SHAPE, &least).unwrap();
        assert!(need.is_short && need.peak_bytes <= least_bytes);
        assert_eq!(need.signature, roomy.signature);
        let below = Setup { limit_bytes: Some(least_bytes - (64 << 10)), ..ROOMY };
        assert!(measure(SHAPE, &below).is_err());
    }

    #[test]
    fn a_model_of_its_own_size_moves_nothing() {
        let roomy = measure(SHAPE, &ROOMY).unwrap();
        let exact = Setup { limit_bytes: Some(roomy.peak_bytes), ..ROOMY };
        assert!(!measure(SHAPE, &exact).unwrap().is_short);
    }
}
