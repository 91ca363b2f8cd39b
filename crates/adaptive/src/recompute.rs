//! What making a block again costs.
//!
//! The model: a replay runs its producer once more on compute, so it adds the producer's measured
//! device time and a fixed launch time to the step, and nothing hides it. Where the host has no
//! time to spare, it adds what the host needs for it, if that is more. It assumes that
//!
//! - the op takes as long the second time as the first, whatever else the device does; a nested
//!   op takes its share, by bytes, of the outermost op that was measured;
//! - inputs that are on the device cost nothing. That they are there is the planner's part: a
//!   replay counts as one more use of each input, so that an input is not away over it, comes back
//!   for it, or is itself made again just before, also where its owner has freed it. So chains of
//!   replays need no model of their own;
//! - only ops that their owner registered, or that a recorded step names and that are known to be
//!   deterministic, give back the very bytes, if they change nothing that they read. Where an op
//!   writes several blocks, a replay brings one of them back, and the others go to scratch. A block
//!   whose producer's inputs have changed by the time it is needed is kept or swapped.

use policy::{RecomputeOption, Trace, replay_us, replayable_blocks};

/// Settings of the cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecomputeConfig {
    /// Fixed time of one replay beside the op's own device time, in microseconds.
    pub launch_us: f64,
    /// What measured times are multiplied with, to be on the safe side.
    pub caution: f64,
    /// Blocks whose replay takes longer for each byte than this are not offered, in microseconds.
    pub max_us_per_mib: f64,
}

impl Default for RecomputeConfig {
    fn default() -> RecomputeConfig {
        RecomputeConfig { launch_us: 5.0, caution: 1.05, max_us_per_mib: f64::INFINITY }
    }
}

/// What each block that can be made again would cost, by block.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](policy::check_trace)).
///
/// # Examples
/// ```
/// use adaptive::{RecomputeConfig, recompute_options};
/// use policy::synthetic::{TransformerShape, transformer_trace};
///
/// let shape =
///     TransformerShape { layers: 2, weight_mib: 8, activation_mib: 16, forward_us: 900.0 };
/// let trace = transformer_trace(&shape);
/// let options = recompute_options(&trace, &RecomputeConfig::default());
/// let names: Vec<&str> =
///     options.iter().map(|o| trace.blocks[o.block.0 as usize].name.as_str()).collect();
/// assert!(names.contains(&"layer0.gelu"));
/// assert!(!names.contains(&"layer0.weight"), "nothing in the step can make a weight again");
/// ```
pub fn recompute_options(trace: &Trace, config: &RecomputeConfig) -> Vec<RecomputeOption> {
    let mut options: Vec<RecomputeOption> = Vec::new();
    let adds_us = replay_us(trace);
    for replayable in replayable_blocks(trace) {
        let device_us = config.launch_us + config.caution * replayable.device_us;
        let replay_us = adds_us(device_us);
        match options.last_mut() {
            // Several ops make this block in turn: count on the slowest.
            Some(option) if option.block == replayable.block => {
                option.replay_us = option.replay_us.max(replay_us);
            }
            _ => options.push(RecomputeOption { block: replayable.block, replay_us }),
        }
    }
    options.retain(|option| {
        let mib = trace.blocks[option.block.0 as usize].size_bytes as f64 / (1 << 20) as f64;
        option.replay_us <= config.max_us_per_mib * mib
    });
    options
}
