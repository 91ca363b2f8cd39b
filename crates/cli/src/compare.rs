//! Compares two runs bit for bit.

use std::fmt;

use adaptive::Stage;

use crate::training::Outcome;

/// The first place where a run differs from the one it should equal.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Difference {
    /// A loss.
    Loss { step: usize, expected: Option<f32>, found: Option<f32> },
    /// A weight after the last step.
    Weight { name: String, element: usize, expected: f32, found: f32 },
    /// The runs do not have the same losses or weights to compare.
    Count,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the run under the cap differs from the one without: ")?;
        match self {
            Difference::Loss { step, expected, found } => {
                write!(f, "the loss of step {step} is {found:?} instead of {expected:?}")
            }
            Difference::Weight { name, element, expected, found } => {
                write!(f, "element {element} of {name} ends as {found:?} instead of {expected:?}")
            }
            Difference::Count => write!(f, "they do not have as many steps or weights"),
        }
    }
}

/// Compares all losses and the final weights.
pub(crate) fn first_difference(expected: &Outcome, found: &Outcome) -> Option<Difference> {
    let losses = |outcome: &Outcome| -> Vec<Option<f32>> {
        outcome.steps.iter().map(|(progress, _)| progress.loss).collect()
    };
    let loss = first_loss(&losses(expected), &losses(found));
    loss.or_else(|| first_weight(&expected.weights, &found.weights))
}

fn first_loss(expected: &[Option<f32>], found: &[Option<f32>]) -> Option<Difference> {
    if expected.len() != found.len() {
        return Some(Difference::Count);
    }
    let bits = |loss: &Option<f32>| loss.map(f32::to_bits);
    let step = expected.iter().zip(found).position(|(one, other)| {
        // A loss that never came is not a loss that agrees.
        bits(one) != bits(other) || one.is_none()
    })?;
    Some(Difference::Loss { step, expected: expected[step], found: found[step] })
}

type Weights = [(String, Vec<u32>)];

fn first_weight(expected: &Weights, found: &Weights) -> Option<Difference> {
    if expected.len() != found.len() || expected.is_empty() {
        return Some(Difference::Count);
    }
    for ((name, expected), (_, found)) in expected.iter().zip(found) {
        if expected.len() != found.len() {
            return Some(Difference::Count);
        }
        if let Some(element) = expected.iter().zip(found).position(|(one, other)| one != other) {
            return Some(Difference::Weight {
                name: name.clone(),
                element,
                expected: f32::from_bits(expected[element]),
                found: f32::from_bits(found[element]),
            });
        }
    }
    None
}

/// Median time of the steps that ran undisturbed, in microseconds: those of the Stable mode, or
/// all if there were none.
pub(crate) fn stable_step_us(outcome: &Outcome) -> Option<f64> {
    let times = |stable: bool| -> Vec<f64> {
        let steps = outcome.steps.iter();
        let wanted = steps.filter(|(progress, _)| !stable || progress.stage == Stage::Stable);
        wanted.map(|(progress, _)| progress.step_us).collect()
    };
    let mut sorted = times(true);
    if sorted.is_empty() {
        sorted = times(false);
    }
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_differs_by_any_bit_and_by_its_absence() {
        let same = [Some(1.5), Some(f32::NAN)];
        assert_eq!(first_loss(&same, &same), None);
        let check = |found: &[Option<f32>], expect: &str| {
            let text = first_loss(&same, found).expect("they differ").to_string();
            assert!(text.contains(expect), "{text}");
        };
        check(&[Some(f32::from_bits(1.5_f32.to_bits() + 1)), Some(f32::NAN)], "step 0");
        check(&[Some(1.5), None], "step 1 is None");
        check(&[Some(1.5)], "as many");
        assert!(first_loss(&[None], &[None]).is_some());
        assert!(first_loss(&[Some(0.0)], &[Some(-0.0)]).is_some());
    }

    #[test]
    fn a_weight_is_named() {
        let weights = |bits: u32| vec![("a".to_owned(), vec![1]), ("b".to_owned(), vec![2, bits])];
        assert_eq!(first_weight(&weights(3), &weights(3)), None);
        let text = first_weight(&weights(3), &weights(4)).expect("they differ").to_string();
        assert!(text.contains("element 1 of b"), "{text}");
        assert_eq!(first_weight(&[], &[]), Some(Difference::Count));
        assert_eq!(first_weight(&weights(3), &weights(3)[..1]), Some(Difference::Count));
    }
}
