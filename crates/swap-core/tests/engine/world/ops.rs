//! Runs the commands of a script on the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use swap_core::{AccessMode, BlockId, Driver, Error, MemoryError, Recipe, Residency};

use super::kernel::{Kernel, replay};
use super::tally::state_name;
use super::{NAMES, Shadow, Stop, THRESHOLD, World};
use crate::engine::script::{Command, OpSpec, Writes};

/// An op's operands in order.
type Operand = (usize, AccessMode);

impl World {
    pub(super) fn touch(&mut self, at: usize, mode: AccessMode) -> Result<(), Stop> {
        let Shadow { id, size_bytes, address, .. } = self.blocks[at];
        self.enter(Some(id), size_bytes);
        self.note_live();
        let mut before = None;
        if self.setup.probe
            && let Ok(residency) = self.engine.residency(id)
        {
            *self.tally.touches.entry(state_name(residency)).or_default() += 1;
            if matches!(residency, Residency::Leaving | Residency::Away) {
                before = Some(self.copies());
            }
        }
        match self.ops().touch(id, mode) {
            Ok(found) if found.0 == address => {
                if before.is_some_and(|copies| copies == self.copies()) {
                    self.tally.retakes += 1;
                }
                Ok(())
            }
            Ok(found) => self.broken(format!("the block moved from {address:#x} to {found:?}")),
            Err(error) => {
                let extra = if mode.writes() { self.largest_discarded() } else { 0 };
                Err(self.judge(error, extra))
            }
        }
    }

    pub(super) fn copies(&self) -> u64 {
        self.fault.calls_by_name().get("copy").copied().unwrap_or(0)
    }

    /// The owner's own order: later work of `stream` comes behind this much of the other's.
    pub(super) fn order(&mut self, stream: usize, needed: u64) {
        let other = 1 - stream;
        if needed > self.behind[stream] {
            self.check.record_event(self.event, self.streams[other].1).expect("records");
            self.check.wait_event(self.streams[stream].1, self.event).expect("waits");
            self.behind[stream] = self.launched[other];
            self.tally.ordered += 1;
        }
    }

    /// Launches the kernel of the open op, and follows it in the shadow.
    pub(super) fn launch(&mut self, stream: usize, operands: &[Operand]) -> Result<Kernel, Stop> {
        let mut kernel = Kernel::default();
        for &(at, mode) in operands {
            if mode.writes() && stream == 1 {
                self.order(1, self.blocks[at].watched);
            }
            let tag = self.blocks[at].tag;
            let fresh = if mode.writes() { Some(self.tag()) } else { None };
            kernel.finds.push(if mode == AccessMode::Write { None } else { tag });
            kernel.leaves.push(fresh);
        }
        let what = format!("op {} of step {}", self.op_index, self.tally.steps);
        let body = kernel.body(&self.shared, &what);
        if let Err(error) = self.ops().launch(10.0, body) {
            return Err(self.judge(error, 0));
        }
        self.launched[stream] += 1;
        let number = self.launched[stream];
        for (&(at, mode), leaves) in operands.iter().zip(&kernel.leaves) {
            let shadow = &mut self.blocks[at];
            if mode.writes() {
                shadow.tag = *leaves;
                shadow.written = Some((stream, number));
            }
        }
        Ok(kernel)
    }

    pub(super) fn begin(&mut self, stream: usize) -> Result<(), Stop> {
        self.begin_named(stream, 0)
    }

    fn begin_named(&mut self, stream: usize, name: usize) -> Result<(), Stop> {
        self.shared.lock().expect("no kernel panics").open.push(BTreeMap::new());
        let (op, on) = (self.op_index, self.streams[stream].0);
        if let Err(error) = self.ops().begin_on(NAMES[stream][name], on) {
            return Err(self.judge(error, 0));
        }
        self.op_index += 1;
        self.tally.ops += 1;
        self.tally.side_ops += stream as u64;
        if self.setup.probe {
            let due = self.ordered_in.iter().filter(|ordered| ordered.0 == op);
            let ids: Vec<BlockId> =
                due.filter_map(|&(_, at)| self.places.get(at).copied()).collect();
            for id in ids {
                let away =
                    matches!(self.engine.residency(id), Ok(Residency::Away | Residency::Leaving));
                self.tally.put_off += u64::from(away);
            }
        }
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<(), Stop> {
        let result = self.ops().end();
        self.shared.lock().expect("no kernel panics").open.pop();
        result.map_err(|error| self.judge(error, 0))
    }

    pub(super) fn run_op(&mut self, spec: &OpSpec, depth: usize) -> Result<(), Stop> {
        let stream = usize::from(spec.side);
        self.begin_named(stream, spec.kind())?;
        self.tally.nested_ops += u64::from(depth > 0);
        let mut operands: Vec<Operand> = Vec::new();
        for &pick in &spec.reads {
            let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { continue };
            if !operands.iter().any(|operand| operand.0 == at) {
                self.touch(at, AccessMode::Read)?;
                operands.push((at, AccessMode::Read));
            }
        }
        for command in &spec.inner {
            self.run(command, depth + 1, stream)?;
        }
        let mut fresh = Vec::new();
        match spec.writes {
            Writes::Nothing => {}
            Writes::InPlace(pick) | Writes::Over(pick) => {
                let at = self.pick(pick, |_| true);
                if let Some(at) = at.filter(|&at| !operands.iter().any(|operand| operand.0 == at)) {
                    let knows = self.blocks[at].tag.is_some();
                    let in_place = knows && matches!(spec.writes, Writes::InPlace(_));
                    let mode = if in_place { AccessMode::ReadWrite } else { AccessMode::Write };
                    self.touch(at, mode)?;
                    operands.push((at, mode));
                }
            }
            Writes::Fresh(size) => fresh.push(size),
            Writes::Two(first, second) => fresh.extend([first, second]),
        }
        for size in fresh {
            let at = self.new_block(size, Some(stream), false)?;
            self.touch(at, AccessMode::Write)?;
            operands.push((at, AccessMode::Write));
        }
        let mut temporary = None;
        if let Some(size) = spec.temporary {
            let at = self.new_block(size, Some(stream), false)?;
            self.touch(at, AccessMode::Write)?;
            operands.push((at, AccessMode::Write));
            temporary = Some(at);
        }
        let kernel = self.launch(stream, &operands)?;
        if spec.recipe && temporary.is_none() && !operands.is_empty() {
            let recipe = self.recipe(stream, &operands, &kernel);
            if let Err(error) = self.ops().recipe(recipe) {
                return Err(self.judge(error, 0));
            }
        }
        if let Some(at) = temporary {
            self.free(at)?;
        }
        if spec.frees_input
            && let Some(&(at, AccessMode::Read)) = operands.first()
            && !self.blocks[at].persistent
            && depth == 0
        {
            self.free(at)?;
        }
        self.end()
    }

    pub(super) fn recipe(&self, stream: usize, operands: &[Operand], kernel: &Kernel) -> Recipe {
        let blocks: Vec<(BlockId, u64, AccessMode)> = operands
            .iter()
            .map(|&(at, mode)| (self.blocks[at].id, self.blocks[at].size_bytes, mode))
            .collect();
        let (shared, kernel, stream) =
            (Arc::clone(&self.shared), kernel.clone(), self.streams[stream].0);
        let granularity = self.setup.granularity_bytes;
        Recipe::new(move |ops, output| {
            // Of what the op writes, that alone which is to come back.
            let is_used = |&at: &usize| blocks[at].2 == AccessMode::Read || blocks[at].0 == output;
            let used: Vec<usize> = (0..blocks.len()).filter(is_used).collect();
            let blocks: Vec<_> = used.iter().map(|&at| blocks[at]).collect();
            let kernel = kernel.only(&used);
            let physical = |size: u64| size.next_multiple_of(granularity);
            let bytes = |size: u64| if size >= THRESHOLD { physical(size) } else { 0 };
            let frame = blocks.iter().map(|&(id, size, _)| (id, bytes(size))).collect();
            let depth = {
                let mut shared = shared.lock().expect("no kernel panics");
                shared.open.push(frame);
                shared.replays += 1;
                shared.open.len()
            };
            let result = replay(ops, stream, &blocks, &kernel, &shared);
            let mut shared = shared.lock().expect("no kernel panics");
            if let Err(Error::OutOfMemory(_)) = &result {
                let needed = shared.open_bytes();
                shared.needed_bytes.get_or_insert(needed);
            }
            shared.open.truncate(depth - 1);
            result
        })
    }

    pub(super) fn run(
        &mut self,
        command: &Command,
        depth: usize,
        stream: usize,
    ) -> Result<(), Stop> {
        match command {
            Command::Op(spec) => self.run_op(spec, depth),
            Command::Free(pick) => {
                let at = self.pick(*pick, |shadow| !shadow.persistent && !self.is_open(shadow.id));
                at.map_or(Ok(()), |at| self.free(at))
            }
            Command::Allocate(size) => {
                self.new_block(*size, (depth > 0).then_some(stream), false).map(|_| ())
            }
            Command::Watch(pick) => self.watch(*pick),
            Command::Trim => match self.engine.trim() {
                Ok(()) => Ok(()),
                Err(error) => Err(self.judge(error, 0)),
            },
            Command::Suspend(resumes) => self.suspend(*resumes),
            Command::Abandon(pick) => self.abandon(*pick),
            Command::EndStep => self.end_step(),
        }
    }

    /// What is left on the device is no more than the small blocks' segments and what is held.
    fn suspend(&mut self, resumes: bool) -> Result<(), Stop> {
        let suspended = self.engine.suspend();
        match suspended {
            Ok(held_bytes) => {
                let stats = self.engine.memory_stats().map_err(|error| self.judge(error, 0))?;
                let known_bytes = stats.active_bytes.current + stats.segment_bytes.current;
                if held_bytes > known_bytes && !self.setup.faults {
                    return self.broken(format!("{held_bytes} held, {known_bytes} in use"));
                }
                self.tally.suspended += 1;
            }
            // There was no host memory for all of it, so nothing left.
            Err(Error::Memory(MemoryError::HostFull { .. })) => return Ok(()),
            Err(error) => return Err(self.judge(error, 0)),
        }
        let resumed = if resumes { self.engine.resume() } else { Ok(()) };
        resumed.map_err(|error| self.judge(error, 0))
    }

    /// An exception in the middle of an op: work was launched, the op never ends.
    pub(super) fn abandon(&mut self, pick: u16) -> Result<(), Stop> {
        let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { return Ok(()) };
        self.begin(0)?;
        self.touch(at, AccessMode::ReadWrite)?;
        self.launch(0, &[(at, AccessMode::ReadWrite)])?;
        self.drop_stack();
        self.tally.abandoned += 1;
        Ok(())
    }

    /// An op without a launch, as operators of a framework are.
    pub(super) fn watch(&mut self, pick: u16) -> Result<(), Stop> {
        let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { return Ok(()) };
        self.begin(0)?;
        self.touch(at, AccessMode::Read)?;
        if let Some((1, number)) = self.blocks[at].written {
            self.order(0, number);
        }
        self.launched[0] += 1;
        self.blocks[at].watched = self.launched[0];
        self.end()
    }
}
