//! The steps of a training: what comes between operators, and their ends.

use std::sync::Arc;

use swap_core::{AccessMode, Orders, Plan, StepReport, Trace};

use super::framework::{Role, STREAMS, Stop};
use super::tally::Tally;
use super::{COMMANDS, NAMES, Op, SLEEP, Training};
use crate::engine::lots::laid_out;
use crate::engine::script::{Random, SIZES};
use crate::engine::world::GRANULARITY;

impl Training {
    /// Weights, which outlive steps.
    pub(super) fn open(&mut self, random: &mut Random) -> Result<(), String> {
        for _ in 0..2 + random.below(4) {
            let size_bytes = SIZES[3 + random.below(5) as usize];
            let op = Op { thread: 0, stream: 0, aside: false, reads_batch: false, may_nest: false };
            self.outermost(|training| {
                let thread = training.framework.thread(0);
                thread.begin(NAMES[0])?;
                let id = training.allocate_bytes(size_bytes, op)?;
                training.framework.kernel(0, &[(id, AccessMode::Write)])?;
                training.tell(0, id, AccessMode::Write)?;
                training.framework.thread(0).end()?;
                training.leave(id, AccessMode::Write);
                let at = training.framework.find(id).expect("lives");
                training.framework.tensors[at].persistent = true;
                Ok(())
            })?;
        }
        self.end_step()
    }

    /// Runs one command. One that finds no memory is given up, as an exception does.
    pub(super) fn outermost(
        &mut self,
        run: impl FnOnce(&mut Training) -> Result<(), Stop>,
    ) -> Result<(), String> {
        match run(self) {
            Ok(()) => Ok(()),
            Err(Stop::OutOfMemory) => {
                self.framework.tally.out_of_memory += 1;
                for thread in &mut self.framework.threads {
                    *thread = None;
                    *thread = Some(self.framework.engine.op_stack());
                }
                self.framework.depth = Default::default();
                for tensor in &mut self.framework.tensors {
                    (tensor.users, tensor.is_open) = (0, false);
                }
                self.settle()
            }
            Err(Stop::Broken(what)) => Err(what),
        }
    }

    /// A step of the program of this seed. With a `branch` it differs from others of that program.
    pub(super) fn step(&mut self, program: u64, mut branch: Option<Random>) -> Result<(), String> {
        let mut random = Random(program);
        if branch.as_mut().is_some_and(|random| random.chance(25)) {
            self.fall_asleep()?;
        }
        self.outermost(|training| training.load(&mut random))?;
        // The loop's own reference to the last batch goes here, whatever still runs.
        if let Some(batch) = self.batch.take() {
            self.outermost(|training| training.framework.free(batch))?;
        }
        self.framework.wait_stream(0, 1);
        self.batch = self.next_batch.take();
        for command in 0..COMMANDS {
            if let Some(random) = &mut branch
                && random.chance(8)
            {
                self.command(random)?;
            }
            self.command(&mut random)?;
            if self.unsettled > 0 {
                self.unsettled -= 1;
                if self.unsettled == 0 {
                    self.settle()?;
                }
            }
            if !self.tells && command == COMMANDS / 2 {
                (self.tells, self.unsettled) = (true, 1 + random.below(4));
            }
        }
        if random.chance(40) {
            self.framework.synchronize(0);
        }
        let left = |tensor: &&super::framework::Tensor| {
            !tensor.persistent && tensor.role == Role::Tensor && Some(tensor.id) != self.batch
        };
        let left: Vec<_> = self.framework.tensors.iter().filter(left).map(|it| it.id).collect();
        for id in left {
            self.outermost(|training| training.framework.free(id))?;
        }
        self.settle()?;
        self.end_step()
    }

    fn command(&mut self, random: &mut Random) -> Result<(), String> {
        let drawn = random.below(100);
        match drawn {
            0..78 => {
                let op = self.draw_op(random, true);
                self.outermost(|training| training.op(random, op))
            }
            78..90 => {
                let is_free = |tensor: &super::framework::Tensor| {
                    !tensor.persistent && tensor.role == Role::Tensor && tensor.users == 0
                };
                let batches = [self.batch, self.next_batch];
                let at = self
                    .framework
                    .pick(random, |tensor| is_free(tensor) && !batches.contains(&Some(tensor.id)));
                let Some(at) = at else { return Ok(()) };
                let id = self.framework.tensors[at].id;
                self.outermost(|training| training.framework.free(id))
            }
            90..95 => self.record_stream(random),
            95..97 => self.outermost(|training| Ok(training.framework.engine.trim()?)),
            97 if self.framework.watched => self.outermost(|training| {
                // The host may have no room for all.
                let _ = training.framework.engine.suspend();
                Ok(training.framework.engine.resume()?)
            }),
            _ => {
                let [one, other] = [0; 2].map(|_| random.below(STREAMS as u64) as usize);
                self.framework.wait_stream(one, other);
                Ok(())
            }
        }
    }

    fn record_stream(&mut self, random: &mut Random) -> Result<(), String> {
        let stream = random.below(STREAMS as u64) as usize;
        let Some(at) = self.framework.pick(random, |tensor| tensor.tag.is_some()) else {
            return Ok(());
        };
        self.framework.tensors[at].recorded.insert(stream);
        let (id, on) = (self.framework.tensors[at].id, self.framework.streams[stream].0);
        self.framework.engine.use_on(id, on).map_err(|error| error.to_string())
    }

    /// Nobody tells of operators from here on, if all fits.
    fn fall_asleep(&mut self) -> Result<(), String> {
        let engine = self.framework.engine.clone();
        let text = |error: swap_core::Error| error.to_string();
        engine.set_watched(false).map_err(text)?;
        self.framework.watched = false;
        // The checker takes the touches below for work.
        (1..STREAMS).for_each(|other| self.framework.wait_stream(0, other));
        let mut ops = engine.op_stack();
        ops.begin_aside(SLEEP, engine.compute_stream()).map_err(text)?;
        for tensor in self.framework.tensors.iter().filter(|tensor| tensor.is_large()) {
            if !engine.is_held(tensor.id).map_err(text)?
                && ops.touch(tensor.id, AccessMode::Read).is_err()
            {
                drop(ops);
                return self.settle();
            }
        }
        ops.end().map_err(text)?;
        engine.synchronize().map_err(text)?;
        self.tells = false;
        Ok(())
    }

    /// All operators are told of, and the engine counts on it.
    fn settle(&mut self) -> Result<(), String> {
        (self.tells, self.unsettled) = (true, 0);
        if self.framework.watched {
            return Ok(());
        }
        self.framework.watched = true;
        self.framework.engine.set_watched(true).map_err(|error| error.to_string())
    }

    pub(super) fn end_step(&mut self) -> Result<(), String> {
        let reports = self.framework.engine.end_step().map_err(|error| error.to_string())?;
        self.take(reports);
        self.framework.verdict()
    }

    fn take(&mut self, reports: Vec<StepReport>) {
        for report in reports {
            let tally = &mut self.framework.tally;
            tally.moved_bytes += report.counters.swapped_in_bytes;
            tally.clean += report.counters.clean_swap_outs;
            let calls = report.counters.memory_calls;
            tally.memory_calls += calls.mapped + calls.unmapped;
            tally.strayed += u64::from(report.strayed_ops);
            self.framework.trace = report.trace.or(self.framework.trace.take());
        }
    }

    pub(super) fn set_orders(
        &mut self,
        record: bool,
        plan: Option<(&Plan, &Trace)>,
    ) -> Result<(), String> {
        let orders = plan.map(|(plan, trace)| {
            let orders = Orders::with_trace(plan, trace);
            Arc::new(laid_out(orders, &self.framework.lots, GRANULARITY))
        });
        self.framework.engine.set_orders(record, orders).map_err(|error| error.to_string())
    }

    /// Reads all that is there, ends, and looks at what is left.
    pub(super) fn close(mut self) -> Result<(Tally, u64), String> {
        let tensors = self.framework.tensors.clone();
        for tensor in tensors.iter().filter(|it| it.tag.is_some() && it.role == Role::Tensor) {
            self.outermost(|training| {
                training.framework.thread(0).begin(NAMES[1])?;
                training.tell(0, tensor.id, AccessMode::Read)?;
                training.framework.kernel(0, &[(tensor.id, AccessMode::Read)])?;
                Ok(training.framework.thread(0).end()?)
            })?;
        }
        self.framework.engine.synchronize().map_err(|error| error.to_string())?;
        let reports = self.framework.engine.drain_reports().map_err(|error| error.to_string())?;
        self.take(reports);
        self.framework.verdict()?;
        self.framework.finish()
    }
}
