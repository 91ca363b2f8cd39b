//! Judging steps together with other ranks: each step waits until all have told their figures.

use swap_core::{Error, StepReport};

use super::{FinishedStep, Session, Shared, Waiting, agreed};
use crate::ranks::{Figure, Figures, Round};
use crate::search::Planner;
use crate::stage::Stage;

impl<P: Planner> Session<P> {
    /// From now on steps are judged by what [`agree`](Session::agree) brings, beginning with the
    /// one that runs. Waits for the device and returns the steps that are still owed: they are
    /// judged by this rank alone. All ranks begin in the same step.
    ///
    /// leads: whether all plan for what this rank's ops touch, where they recorded the same step.
    /// One rank leads.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn share(&mut self, leads: bool) -> Result<Vec<FinishedStep>, Error> {
        let finished = self.drain()?;
        self.policy.planner_mut().begin_anew();
        self.shared.get_or_insert_default().leads = leads;
        Ok(finished)
    }

    /// From now on this rank judges its steps alone, those too that still wait for the others.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn part(&mut self) -> Result<(), Error> {
        let Some(shared) = self.shared.take() else { return Ok(()) };
        for waiting in shared.waiting {
            match waiting {
                Waiting::Finished(told) if told.is_moving_in => self.policy.pass_over(&told.report),
                Waiting::Finished(told) => self.judge(told.directive, &told.report, None)?,
                Waiting::Asleep => {}
            }
        }
        Ok(())
    }

    /// Nobody tells of ops from here on: this rank has nothing to choose, whatever the others tell
    /// of the steps that they have not agreed on yet. Nobody can follow a plan or its layout then:
    /// between two steps both are put aside until one ends that was told of.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn fall_asleep(&mut self) -> Result<(), Error> {
        if !self.engine.is_inside_step()? {
            self.engine.set_orders(false, None)?;
            if self.layouts.are_in_use() {
                // As large as a step could be, which says nothing of those that come.
                self.engine.trim()?;
            }
            self.layouts = self.layouts.afresh();
            self.slept = true;
        }
        // What left is home by now.
        self.engine.trim_host()?;
        if let Some(shared) = &mut self.shared {
            shared.asleep = true;
        }
        Ok(())
    }

    /// A step ended of which nobody told. Returns the steps that were still owed.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn end_step_asleep(&mut self) -> Result<Vec<FinishedStep>, Error> {
        self.engine.end_unwatched_step()?;
        if self.shared.is_none() {
            return Ok(Vec::new());
        }
        // They come before it.
        let finished = if self.owed.is_empty() { Vec::new() } else { self.drain()? };
        if let Some(shared) = &mut self.shared {
            shared.waiting.push_back(Waiting::Asleep);
            shared.asleep = true;
        }
        Ok(finished)
    }

    /// What this rank tells the others of the oldest step that they have not agreed on.
    ///
    /// # Errors
    /// [`Error::Usage`] if it judges its steps alone.
    pub fn figures(&self) -> Result<Figures, Error> {
        let shared = self.shared()?;
        let figures = match shared.waiting.front() {
            None => Figures::none().with_flag(Figure::Lacks, true),
            Some(Waiting::Asleep) => asleep(),
            Some(Waiting::Finished(..)) if shared.asleep => asleep(),
            Some(Waiting::Finished(told))
                if told.is_moving_in || told.directive != self.directives =>
            {
                self.policy.void_figures()
            }
            Some(Waiting::Finished(told)) => {
                self.policy.figures(&told.report).with_recorded(&told.report, shared.leads)
            }
        };
        let hurries = !shared.asleep && self.policy.stage() != Stage::Stable;
        Ok(figures
            .with_flag(Figure::IsLast, shared.waiting.len() <= 1)
            .with_flag(Figure::Hurries, hurries)
            .with_link(self.policy.planner().link()))
    }

    /// Takes in what all ranks told in a round: the largest of each number. Call it between steps,
    /// on all ranks at the same place. Says what comes next.
    ///
    /// # Errors
    /// [`Error::Usage`] if this rank judges its steps alone, or inside a step; else if the driver
    /// fails.
    pub fn agree(&mut self, worst: &Figures) -> Result<Round, Error> {
        let shared = self.shared()?;
        let next = worst.round();
        if worst.is(Figure::Lacks) {
            return Ok(next);
        }
        let differs = worst.differ_in_blocks();
        let again = differs && shared.put_off_steps < PUT_OFF_STEPS_MOST;
        let worst = &worst.with_flag(Figure::Again, again);
        let n_times = match shared.waiting.front() {
            Some(Waiting::Finished(told)) if worst.are_of_one_kind() => {
                time_count(&told.report, worst)
            }
            Some(_) => 0,
            None => {
                return Err(Error::Usage("the ranks agreed on a step that this rank has not run"));
            }
        };
        let shared = self.shared_mut()?;
        shared.put_off_steps = if differs { shared.put_off_steps.saturating_add(1) } else { 0 };
        if let Some(link) = worst.link() {
            self.policy.planner_mut().set_link(link);
        }
        if n_times == 0 {
            self.judge_oldest(*worst)?;
            return Ok(next);
        }
        self.shared_mut()?.worst = Some(*worst);
        Ok(Round::Times(n_times))
    }

    /// The step that the ranks agree on, as numbers: times in microseconds, then what is told of
    /// its blocks and of what its ops touch.
    ///
    /// # Errors
    /// [`Error::Usage`] if [`agree`](Session::agree) did not ask for them.
    pub fn times(&self) -> Result<Vec<f64>, Error> {
        let shared = self.shared()?;
        let (Some(worst), Some(Waiting::Finished(told))) = (shared.worst, shared.waiting.front())
        else {
            return Err(not_asked());
        };
        let Some(trace) = &told.report.trace else { return Err(not_asked()) };
        Ok(agreed::numbers(trace, shared.leads, worst.touch_count()))
    }

    /// Takes in the largest of each number, so that ranks with the same step plan for the same one.
    ///
    /// # Errors
    /// [`Error::Usage`] if there are not as many as [`agree`](Session::agree) asked for; else as
    /// there.
    pub fn agree_times(&mut self, times: &[f64]) -> Result<Round, Error> {
        let shared = self.shared_mut()?;
        let Some(worst) = shared.worst else { return Err(not_asked()) };
        if let Some(Waiting::Finished(told)) = shared.waiting.front_mut() {
            if times.len() != time_count(&told.report, &worst) {
                return Err(Error::Usage("the number of times is not the one that was asked for"));
            }
            if let Some(trace) = &mut told.report.trace {
                agreed::set_numbers(trace, times);
            }
        }
        shared.worst = None;
        self.judge_oldest(worst)?;
        Ok(worst.round())
    }

    fn judge_oldest(&mut self, worst: Figures) -> Result<(), Error> {
        let shared = self.shared_mut()?;
        let asleep = shared.asleep;
        match shared.waiting.pop_front() {
            // Who sleeps has nothing to choose.
            Some(Waiting::Finished(told)) if !asleep => {
                self.judge(told.directive, &told.report, Some(worst))
            }
            _ => Ok(()),
        }
    }

    fn shared(&self) -> Result<&Shared, Error> {
        self.shared.as_ref().ok_or(ALONE)
    }

    fn shared_mut(&mut self) -> Result<&mut Shared, Error> {
        self.shared.as_mut().ok_or(ALONE)
    }
}

/// Of steps in a row that differ in blocks so many are put off; then each rank plans for its own.
const PUT_OFF_STEPS_MOST: u32 = 8;

const ALONE: Error =
    Error::Usage("this rank does not share its steps with others: call share first");

fn not_asked() -> Error {
    Error::Usage("no times of a step were asked for")
}

fn asleep() -> Figures {
    Figures::none().with_flag(Figure::Advanced, true)
}

/// How many times there are to agree on; 0 if the step was not recorded.
fn time_count(report: &StepReport, worst: &Figures) -> usize {
    let trace = report.trace.as_ref();
    trace.map_or(0, |trace| agreed::number_count(trace, worst.touch_count()))
}
