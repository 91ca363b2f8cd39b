//! Everything that the reports need to know about a run: plain data, filled in by the command.

use adaptive::Treatment;

/// One finished training run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Run {
    /// What was trained.
    pub(crate) model: Model,
    /// `keep`, `swap`, `recompute` or `joint`.
    pub(crate) strategy: String,
    /// Seed of weights and batches.
    pub(crate) seed: u64,
    /// The command as typed, program name included.
    pub(crate) command_line: String,
    /// The cap on physical device bytes.
    pub(crate) memory_limit_bytes: u64,
    /// The most physical bytes that the driver's ledger ever counted.
    pub(crate) peak_device_bytes: u64,
    /// The same without a cap, when that was measured.
    pub(crate) peak_uncapped_bytes: Option<u64>,
    /// Median wall time of a step without a cap, in microseconds, when that was measured.
    pub(crate) step_us_uncapped: Option<f64>,
    /// Whether losses and weights equal those of the uncapped run; `None` when not compared.
    pub(crate) bit_identical: Option<bool>,
    /// Every step in order.
    pub(crate) steps: Vec<Step>,
    /// Memory over the step that `spans` shows.
    pub(crate) memory: MemoryCurves,
    /// What the streams did in one Stable step, in any order. Empty when it was not recorded.
    pub(crate) spans: Vec<LaneSpan>,
    /// What became of each large block, largest first.
    pub(crate) decisions: Vec<Decision>,
}

/// Shape of the trained model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// Number of transformer layers.
    pub(crate) layers: u64,
    /// Width of the residual stream.
    pub(crate) hidden: u64,
    /// Attention heads per layer.
    pub(crate) heads: u64,
    /// Tokens per sequence.
    pub(crate) seq: u64,
    /// Sequences per batch.
    pub(crate) batch: u64,
    /// Trained numbers, all tensors together.
    pub(crate) parameters: u64,
}

/// Where the loop stood in a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Mode {
    /// Recording, no plan yet.
    WarmUp,
    /// Trying plans.
    SearchPolicy,
    /// Running the best plan.
    Stable,
}

impl Mode {
    /// All modes in the order in which a run meets them.
    pub(crate) const ALL: [Mode; 3] = [Mode::WarmUp, Mode::SearchPolicy, Mode::Stable];

    /// The name that every report prints.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::WarmUp => "WarmUp",
            Mode::SearchPolicy => "SearchPolicy",
            Mode::Stable => "Stable",
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    /// Its number, as the run counts.
    pub(crate) step: u64,
    /// Where the loop stood.
    pub(crate) mode: Mode,
    /// Its loss, when known.
    pub(crate) loss: Option<f32>,
    /// Device time, in microseconds.
    pub(crate) device_us: f64,
    /// Wall time, in microseconds.
    pub(crate) step_us: f64,
    /// The most physical bytes held at any moment of the step.
    pub(crate) held_bytes_peak: u64,
    /// Bytes copied to the host.
    pub(crate) swapped_out_bytes: u64,
    /// Bytes copied back.
    pub(crate) swapped_in_bytes: u64,
    /// Ops run once more.
    pub(crate) recomputed_ops: u64,
    /// Device time that compute waited for copies, in microseconds.
    pub(crate) stall_us: f64,
    /// Touches of a block that was away and had not been asked for.
    pub(crate) misses: u64,
    /// Allocations that evicted somebody on the spot.
    pub(crate) rescues: u64,
}

/// Resident bytes over one step, twice: as it ran, and as it would be without a plan.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct MemoryCurves {
    /// Without plan and cap. Each op's bytes are put where the op ran in the planned step, so
    /// both curves and the lanes share one axis. In order of time.
    pub(crate) uncapped: Vec<MemoryPoint>,
    /// As it ran. In order of time.
    pub(crate) planned: Vec<MemoryPoint>,
}

/// From this moment on, this many bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryPoint {
    /// Time since the step began, in microseconds.
    pub(crate) at_us: f64,
    /// Resident bytes, segments included.
    pub(crate) bytes: u64,
}

/// Puts bytes counted by op on a time axis.
///
/// `samples` are (op, bytes) in call order, any number per op; those of one op are spread evenly
/// from its start to the next op's. `op_start_us` has each op's start since the step began, and
/// `step_us` is the step's length. Ops out of range are put at the step's end.
pub(crate) fn spread_over_ops(
    samples: &[(u32, u64)],
    op_start_us: &[f64],
    step_us: f64,
) -> Vec<MemoryPoint> {
    let start_us = |op: usize| op_start_us.get(op).copied().unwrap_or(step_us);
    let mut points = Vec::with_capacity(samples.len());
    let mut latest_us = 0.0_f64;
    for group in samples.chunk_by(|a, b| a.0 == b.0) {
        let op = group[0].0 as usize;
        let (from_us, until_us) = (start_us(op), start_us(op + 1));
        for (position, &(_, bytes)) in group.iter().enumerate() {
            let share = position as f64 / group.len() as f64;
            // An event of an outer op may follow its inner ops: time still only moves on.
            latest_us = latest_us.max(from_us + (until_us - from_us) * share);
            points.push(MemoryPoint { at_us: latest_us, bytes });
        }
    }
    points
}

/// A stream of the device, or its host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    /// Ops and replays.
    Compute,
    /// Copies to the host.
    SwapOut,
    /// Copies to the device.
    SwapIn,
    /// What the host did for each op.
    Host,
}

impl Lane {
    /// Those of the device, from top to bottom.
    pub(crate) const DEVICE: [Lane; 3] = [Lane::Compute, Lane::SwapOut, Lane::SwapIn];

    /// The name that every report prints.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::SwapOut => "swap-out",
            Lane::SwapIn => "swap-in",
            Lane::Host => "host",
        }
    }
}

/// What a span of time was spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WorkKind {
    /// An outermost op.
    Op,
    /// An op run once more to bring a discarded block back.
    Replay,
    /// A copy to the host.
    SwapOut,
    /// A copy back.
    SwapIn,
    /// The host, from the begin of an outermost op to its end.
    Host,
}

impl WorkKind {
    /// All kinds, in the order in which they are drawn.
    pub(crate) const ALL: [WorkKind; 5] =
        [WorkKind::Op, WorkKind::Replay, WorkKind::SwapOut, WorkKind::SwapIn, WorkKind::Host];

    /// Where it runs.
    pub(crate) fn lane(self) -> Lane {
        match self {
            WorkKind::Op | WorkKind::Replay => Lane::Compute,
            WorkKind::SwapOut => Lane::SwapOut,
            WorkKind::SwapIn => Lane::SwapIn,
            WorkKind::Host => Lane::Host,
        }
    }
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneSpan {
    /// What it was.
    pub(crate) kind: WorkKind,
    /// Name of the op, or of the tensor copied.
    pub(crate) name: String,
    /// Start since the step began, in microseconds.
    pub(crate) start_us: f64,
    /// End since the step began, in microseconds.
    pub(crate) end_us: f64,
    /// Bytes copied; 0 for ops.
    pub(crate) size_bytes: u64,
}

impl LaneSpan {
    /// What the span is called in words: copies carry the name of their tensor.
    pub(crate) fn label(&self) -> String {
        match self.kind {
            WorkKind::Op => self.name.clone(),
            WorkKind::Replay => format!("replay {}", self.name),
            WorkKind::SwapOut => format!("swap out {}", self.name),
            WorkKind::SwapIn => format!("swap in {}", self.name),
            WorkKind::Host => format!("host: {}", self.name),
        }
    }
}

/// What became of one block, and why.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// The block's name.
    pub(crate) block: String,
    /// Its physical bytes.
    pub(crate) size_bytes: u64,
    /// What the planner did with it.
    pub(crate) treatment: Treatment,
    /// The time in which it is away; `None` when it is kept.
    pub(crate) away: Option<Away>,
    /// Why, in a few words.
    pub(crate) reason: String,
    /// Step time that it is expected to add, in microseconds.
    pub(crate) added_us: f64,
}

/// The ops between which a block is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Away {
    /// The op after which it goes.
    pub(crate) from_op: String,
    /// The op before which it is back.
    pub(crate) until_op: String,
}
