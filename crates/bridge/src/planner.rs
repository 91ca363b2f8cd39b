//! The planner of the loop: activations first, and all that can move where they are not enough.

use adaptive::{
    Feedback, GenerateConfig, Generated, JointConfig, JointPlanner, Link, Machine, Movable,
    Planner, Proposal, Trace, TraceFault,
};

/// What a user prefers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Prefer {
    /// Activations move, and what lives from step to step only where they are not enough.
    #[default]
    Performance,
    /// Both.
    Memory,
}

impl From<adaptive::Prefer> for Prefer {
    fn from(prefer: adaptive::Prefer) -> Prefer {
        match prefer {
            adaptive::Prefer::Performance => Prefer::Performance,
            adaptive::Prefer::Memory => Prefer::Memory,
        }
    }
}

/// Plans through [`JointPlanner`].
#[derive(Debug)]
pub(crate) struct PreferringPlanner {
    /// In the order in which they are tried.
    planners: Vec<JointPlanner>,
    chosen: usize,
}

impl PreferringPlanner {
    pub(crate) fn new(machine: Machine, config: JointConfig, prefer: Prefer) -> Self {
        let planner = |movable| {
            let generate = GenerateConfig { movable, ..config.generate };
            JointPlanner::new(machine, JointConfig { generate, ..config })
        };
        let planners = match prefer {
            Prefer::Performance => vec![planner(Movable::Activations), planner(Movable::All)],
            Prefer::Memory => vec![planner(Movable::All)],
        };
        PreferringPlanner { planners, chosen: 0 }
    }
}

impl Planner for PreferringPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        let last = self.planners.len() - 1;
        for index in 0..=last {
            self.chosen = index;
            let proposal = self.planners[index].plan(trace, feedback)?;
            let fits = self.latest().is_some_and(|plan| plan.infeasible.is_none());
            if fits || index == last {
                return Ok(proposal);
            }
        }
        Ok(None)
    }

    fn latest(&self) -> Option<&Generated> {
        self.planners[self.chosen].latest()
    }

    fn link(&self) -> Option<Link> {
        self.planners[0].link()
    }

    fn set_link(&mut self, link: Link) {
        for planner in &mut self.planners {
            planner.set_link(link);
        }
    }
}
