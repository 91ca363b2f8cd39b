//! The planner of `train`: the joint one, told which blocks are to stay.

use adaptive::{
    Feedback, Generated, JointPlanner, OptimizerState, Origin, Planner, Proposal, Trace,
    TraceEvent, TraceFault,
};

use crate::gpt::parameters::MOMENT_PREFIX;

/// Plans through [`JointPlanner`].
#[derive(Debug)]
pub(crate) struct TrainPlanner {
    inner: JointPlanner,
    optimizer_state: OptimizerState,
}

impl TrainPlanner {
    pub(crate) fn new(inner: JointPlanner, optimizer_state: OptimizerState) -> TrainPlanner {
        TrainPlanner { inner, optimizer_state }
    }
}

impl Planner for TrainPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        match self.optimizer_state {
            OptimizerState::Swap => self.inner.plan(trace, feedback),
            OptimizerState::Device => self.inner.plan(&with_moments_in_use(trace), feedback),
        }
    }

    fn latest(&self) -> Option<&Generated> {
        self.inner.latest()
    }
}

/// The step as if each op read all of the optimizer's moments. A block that is always in use
/// never leaves.
fn with_moments_in_use(trace: &Trace) -> Trace {
    let moments: Vec<TraceEvent> = (0..)
        .zip(&trace.blocks)
        .filter(|(_, block)| is_moment(&block.name) && block.origin == Origin::Persistent)
        .map(|(index, _)| {
            TraceEvent::Touch(adaptive::BlockIndex(index), adaptive::AccessMode::Read)
        })
        .collect();
    let mut events = Vec::new();
    for &event in &trace.events {
        events.push(event);
        if matches!(event, TraceEvent::Begin(_)) {
            events.extend(&moments);
        }
    }
    Trace { events, ..trace.clone() }
}

/// Whether a block is one of the optimizer's moments.
pub(crate) fn is_moment(name: &str) -> bool {
    name.starts_with(MOMENT_PREFIX)
}
