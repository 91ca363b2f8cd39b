//! How many bytes of tensors may live in swapped memory, and which tensors these are.
//!
//! A budget is written as people give it to a pipeline-parallel job: `all`, one number of GiB for
//! every stage, or one for each stage. It is spent by size: as much of it as the sizes allow,
//! never more.

use std::collections::BTreeMap;

use npu_sys::Bytes;

mod subset;

const GIB: f64 = (1u64 << 30) as f64;

/// The bytes of swapped memory that the tensors of one pipeline stage may take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VirtualBudget {
    /// `None` for no limit.
    limit_bytes: Option<u64>,
    taken_bytes: u64,
}

/// A budget that could not be read.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// Neither one value nor one a stage.
    #[error(
        "the budget '{text}' has {given} values: give 1 for all stages or {stages}, one for each \
         pipeline stage"
    )]
    Count {
        /// What was given.
        text: String,
        /// Values in it.
        given: usize,
        /// Pipeline stages.
        stages: usize,
    },
    /// A value that is not a size.
    #[error("the budget '{value}' {why}: give a number of GiB that is not negative, or 'all'")]
    Value {
        /// What was given.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A stage that does not exist.
    #[error("pipeline stage {stage} is out of range: there are {stages}, counted from 0")]
    Stage {
        /// What was given.
        stage: usize,
        /// Pipeline stages.
        stages: usize,
    },
}

impl VirtualBudget {
    /// A budget of `limit_bytes`, or without a limit.
    pub fn new(limit_bytes: Option<u64>) -> VirtualBudget {
        VirtualBudget { limit_bytes, taken_bytes: 0 }
    }

    /// Reads the budget of pipeline stage `stage` of `stages`, counted from 0.
    ///
    /// `all` has no limit. Numbers are GiB; 0 keeps everything on the device. One value holds for
    /// every stage, else there is one for each.
    ///
    /// # Errors
    /// If the count of values or any value is wrong, of this stage or another.
    pub fn parse(text: &str, stage: usize, stages: usize) -> Result<VirtualBudget, BudgetError> {
        let values: Vec<&str> = text.split_whitespace().collect();
        let given = values.len();
        if given == 0 || given != 1 && given != stages {
            return Err(BudgetError::Count { text: text.to_owned(), given, stages });
        }
        if stage >= stages {
            return Err(BudgetError::Stage { stage, stages });
        }
        let limits = values.into_iter().map(limit).collect::<Result<Vec<_>, _>>()?;
        Ok(VirtualBudget::new(if given == 1 { limits[0] } else { limits[stage] }))
    }

    /// The whole budget; `None` for no limit.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// What is spent.
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// What is left; `None` for no limit.
    pub fn remaining_bytes(&self) -> Option<u64> {
        self.limit_bytes.map(|limit_bytes| limit_bytes - self.taken_bytes)
    }

    /// Which of the tensors live in swapped memory: those whose sizes come nearest to what is
    /// left of the budget without going beyond. Nothing is taken yet.
    ///
    /// No tensor that is left out would fit. Where several choices come equally near, larger
    /// tensors and earlier ones are preferred. The choice is the best there is for up to thousands
    /// of tensors of few different sizes, as models have; for large sets without such order it may
    /// miss it by a small part of the budget. Same sizes, same choice.
    pub fn choose(&self, sizes_bytes: &[u64]) -> Vec<bool> {
        let Some(remaining_bytes) = self.remaining_bytes() else {
            return sizes_bytes.iter().map(|&size_bytes| size_bytes > 0).collect();
        };
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for &size_bytes in sizes_bytes.iter().filter(|&&size_bytes| size_bytes > 0) {
            *counts.entry(size_bytes).or_default() += 1;
        }
        let groups: Vec<(u64, u64)> = counts.into_iter().rev().collect();
        let mut chosen: BTreeMap<u64, u64> =
            subset::nearest(&groups, remaining_bytes).into_iter().collect();
        let choose_one = |size_bytes: &u64| match chosen.get_mut(size_bytes) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        };
        sizes_bytes.iter().map(choose_one).collect()
    }

    /// Spends `size_bytes` if the budget has them.
    #[must_use]
    pub fn take(&mut self, size_bytes: u64) -> bool {
        let Some(sum_bytes) = self.taken_bytes.checked_add(size_bytes) else { return false };
        let fits = self.limit_bytes.is_none_or(|limit_bytes| sum_bytes <= limit_bytes);
        if fits {
            self.taken_bytes = sum_bytes;
        }
        fits
    }

    /// Credits what a `take` spent: the tensor was freed, or is about to be made anew.
    ///
    /// # Panics
    /// If that much was not taken.
    pub fn give_back(&mut self, size_bytes: u64) {
        let left_bytes = self.taken_bytes.checked_sub(size_bytes);
        self.taken_bytes = left_bytes.expect("more was given back than taken");
    }
}

impl std::fmt::Display for VirtualBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.limit_bytes {
            Some(limit_bytes) => {
                write!(f, "{} of {} taken", Bytes(self.taken_bytes), Bytes(limit_bytes))
            }
            None => write!(f, "{} taken, no limit", Bytes(self.taken_bytes)),
        }
    }
}

/// The bytes that one value stands for.
fn limit(value: &str) -> Result<Option<u64>, BudgetError> {
    if value == "all" {
        return Ok(None);
    }
    let bad = |why| Err(BudgetError::Value { value: value.to_owned(), why });
    let Ok(gib) = value.parse::<f64>() else { return bad("is not a number") };
    if gib.is_nan() {
        return bad("is not a number");
    }
    if gib < 0.0 {
        return bad("is negative");
    }
    let bytes = (gib * GIB).floor();
    // Exact in both types, so that the cast below cannot saturate.
    if bytes >= (1u64 << 63) as f64 {
        return bad("is too large");
    }
    Ok(Some(bytes as u64))
}

#[cfg(test)]
mod tests;
