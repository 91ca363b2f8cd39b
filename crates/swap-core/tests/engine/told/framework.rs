//! A framework as the engine sees it: it tells of its operators and submits their work itself.
//!
//! It orders work on a live block between its own streams, by events, and nothing else: who freed a
//! block while a stream still uses it, or moved one, is the engine's business.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use swap_core::devices::{CheckConfig, CheckDriver, HostConfig, HostDriver};
use swap_core::{
    Access, AccessMode, Allocation, BlockId, DevicePtr, Driver, Engine, EventHandle, EventKind,
    Lot, OpStack, Operands, Recipe, StreamHandle, StreamId, Trace,
};

use crate::engine::lab::{Errors, submit_unseen};
use crate::engine::script::Random;
use crate::engine::world::{THRESHOLD, config, host, word};

use super::tally::Tally;

/// The engine's compute stream and two of the framework's own.
pub(super) const STREAMS: usize = 3;
/// The script's thread, and the one that runs backward passes.
pub(super) const THREADS: usize = 2;

/// Why a command did not go on.
#[derive(Debug)]
pub(super) enum Stop {
    OutOfMemory,
    Broken(String),
}

impl From<swap_core::Error> for Stop {
    fn from(error: swap_core::Error) -> Stop {
        match error {
            swap_core::Error::OutOfMemory(_) => Stop::OutOfMemory,
            error => Stop::Broken(error.to_string()),
        }
    }
}

/// What a block is to the framework.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Tensor,
    /// Used by operators that do not show it.
    Workspace,
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) id: BlockId,
    pub(super) start: DevicePtr,
    pub(super) size_bytes: u64,
    /// The stream that it was allocated for.
    pub(super) stream: usize,
    pub(super) role: Role,
    pub(super) persistent: bool,
    /// The pattern that it holds, once something wrote it.
    pub(super) tag: Option<u64>,
    /// A small one that a recipe has read: the engine is told who writes it.
    pub(super) is_input: bool,
    /// Open ops that use it.
    pub(super) users: u32,
    /// An open op writes it, so that no other may use it.
    pub(super) is_open: bool,
    /// Streams that were named to the engine, as by `record_stream`.
    pub(super) recorded: BTreeSet<usize>,
    written: (usize, u64),
    read: [u64; STREAMS],
}

impl Tensor {
    pub(super) fn is_large(&self) -> bool {
        self.size_bytes >= THRESHOLD
    }
}

/// What one kernel does with one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) start: DevicePtr,
    pub(super) size_bytes: u64,
    pub(super) finds: Option<u64>,
    pub(super) leaves: Option<u64>,
}

impl Operand {
    fn access(&self) -> Access {
        let mode = match (self.finds, self.leaves) {
            (_, None) => AccessMode::Read,
            (None, Some(_)) => AccessMode::Write,
            (Some(_), Some(_)) => AccessMode::ReadWrite,
        };
        Access { start: self.start, size_bytes: self.size_bytes, mode }
    }

    fn run(&self, given: &Operands<'_>, index: usize, errors: &Errors) {
        let look = |words: &[u64]| {
            let Some(tag) = self.finds else { return };
            if let Some(at) = (0..words.len()).find(|&at| words[at] != word(tag, at)) {
                let text = format!("word {at} is {:#x}, not of pattern {tag}", words[at]);
                errors.lock().expect("no kernel panics").push(text);
            }
        };
        match self.leaves {
            None => look(given.read::<u64>(index)),
            Some(tag) => {
                let words = given.write::<u64>(index);
                look(words);
                words.iter_mut().enumerate().for_each(|(at, is)| *is = word(tag, at));
            }
        }
    }
}

/// Submits a kernel of the framework's own to a stream.
pub(super) fn submit(
    check: &CheckDriver,
    stream: StreamHandle,
    operands: Vec<Operand>,
    errors: &Errors,
) -> Result<(), Stop> {
    let accesses = operands.iter().map(Operand::access).collect();
    let errors = Arc::clone(errors);
    let body = move |given: &Operands<'_>| {
        for (index, operand) in operands.iter().enumerate() {
            operand.run(given, index, &errors);
        }
    };
    submit_unseen(check, stream, accesses, 5.0, body)
        .map_err(|error| Stop::Broken(format!("not ordered: {error}")))
}

pub(super) struct Framework {
    pub(super) host: Arc<HostDriver>,
    pub(super) check: Arc<CheckDriver>,
    pub(super) engine: Engine,
    pub(super) threads: [Option<OpStack>; THREADS],
    /// The ops that a thread has open.
    pub(super) depth: [u32; THREADS],
    pub(super) streams: [(StreamId, StreamHandle); STREAMS],
    event: EventHandle,
    pub(super) tensors: Vec<Tensor>,
    launched: [u64; STREAMS],
    /// By stream: how much of each other stream's work it is behind.
    behind: [[u64; STREAMS]; STREAMS],
    pub(super) errors: Errors,
    pub(super) replays: Arc<Mutex<u64>>,
    next_tag: u64,
    /// Operators are told of.
    pub(super) watched: bool,
    pub(super) trace: Option<Trace>,
    pub(super) lots: Vec<Option<Lot>>,
    pub(super) tally: Tally,
    pub(super) live_bytes_peak: u64,
}

impl Framework {
    pub(super) fn new(device: HostConfig, limit_bytes: u64, arena_bytes: u64) -> Framework {
        let host = host(device);
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let engine = Engine::new(check.clone(), config(limit_bytes, arena_bytes)).expect("opens");
        let compute = engine.stream_handles().expect("handles")[0];
        let own = || {
            let handle = check.create_stream().expect("a stream");
            (engine.adopt_stream(handle).expect("known"), handle)
        };
        let streams = [(engine.compute_stream(), compute), own(), own()];
        let event = check.create_event(EventKind::Order).expect("an event");
        Framework {
            threads: std::array::from_fn(|_| Some(engine.op_stack())),
            depth: [0; THREADS],
            streams,
            event,
            tensors: Vec::new(),
            launched: [0; STREAMS],
            behind: [[0; STREAMS]; STREAMS],
            errors: Arc::default(),
            replays: Arc::default(),
            next_tag: 1,
            watched: true,
            trace: None,
            lots: Vec::new(),
            tally: Tally::default(),
            live_bytes_peak: 0,
            host,
            check,
            engine,
        }
    }

    pub(super) fn thread(&mut self, number: usize) -> &mut OpStack {
        self.threads[number].as_mut().expect("each thread has a stack")
    }

    pub(super) fn new_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// A tensor like this, if there is one.
    pub(super) fn pick(
        &self,
        random: &mut Random,
        wanted: impl Fn(&Tensor) -> bool,
    ) -> Option<usize> {
        let drawn = random.next() as usize;
        let found: Vec<usize> =
            (0..self.tensors.len()).filter(|&at| wanted(&self.tensors[at])).collect();
        (!found.is_empty()).then(|| found[drawn % found.len()])
    }

    pub(super) fn find(&self, id: BlockId) -> Option<usize> {
        self.tensors.iter().position(|tensor| tensor.id == id)
    }

    /// Memory for a tensor on `stream`, by the thread's open op if its work runs there.
    pub(super) fn allocate(
        &mut self,
        size_bytes: u64,
        stream: usize,
        inside: Option<usize>,
    ) -> Result<BlockId, Stop> {
        let on = self.streams[stream].0;
        let Allocation { block: id, address: start, .. } = match inside {
            _ if !self.watched => self.engine.allocate_aside(size_bytes, on)?,
            Some(thread) => self.thread(thread).allocate_unshown(size_bytes)?,
            None => self.engine.allocate_unshown(size_bytes, on, false)?,
        };
        // Whoever uses it elsewhere comes behind its allocation.
        self.launched[stream] += 1;
        self.tensors.push(Tensor {
            id,
            start,
            size_bytes,
            stream,
            role: Role::Tensor,
            persistent: false,
            tag: None,
            is_input: false,
            users: 0,
            is_open: false,
            recorded: BTreeSet::new(),
            written: (stream, self.launched[stream]),
            read: [0; STREAMS],
        });
        let bytes = self.tensors.iter().map(|tensor| tensor.size_bytes.next_multiple_of(4096));
        self.live_bytes_peak = self.live_bytes_peak.max(bytes.sum());
        Ok(id)
    }

    /// Makes later work of `stream` wait for what another was given until `number`.
    pub(super) fn order(&mut self, stream: usize, other: usize, number: u64) {
        if stream == other || number <= self.behind[stream][other] {
            return;
        }
        self.check.record_event(self.event, self.streams[other].1).expect("records");
        self.check.wait_event(self.streams[stream].1, self.event).expect("waits");
        self.behind[stream][other] = self.launched[other];
        self.tally.waited += 1;
    }

    /// Makes later work of `stream` wait for all that another was given.
    pub(super) fn wait_stream(&mut self, stream: usize, other: usize) {
        self.order(stream, other, self.launched[other]);
    }

    /// Launches a kernel on tensors: what it leaves in each, if it writes it, and whether it looks
    /// at it before.
    pub(super) fn kernel(
        &mut self,
        stream: usize,
        uses: &[(BlockId, AccessMode)],
    ) -> Result<Vec<Operand>, Stop> {
        let mut operands = Vec::new();
        for &(id, mode) in uses {
            let at = self.find(id).expect("the op has it");
            let (writer, written) = self.tensors[at].written;
            self.order(stream, writer, written);
            if mode.writes() {
                for other in 0..STREAMS {
                    self.order(stream, other, self.tensors[at].read[other]);
                }
            }
            let leaves = mode.writes().then(|| self.new_tag());
            let tensor = &self.tensors[at];
            let finds = tensor.tag.filter(|_| mode != AccessMode::Write);
            let Tensor { start, size_bytes, .. } = *tensor;
            operands.push(Operand { start, size_bytes, finds, leaves });
        }
        submit(&self.check, self.streams[stream].1, operands.clone(), &self.errors)?;
        self.tally.kernels += 1;
        for (&(id, _), operand) in uses.iter().zip(&operands).filter(|(used, _)| used.1.writes()) {
            let at = self.find(id).expect("seen above");
            self.tensors[at].tag = operand.leaves;
        }
        self.ended(stream, uses);
        Ok(operands)
    }

    /// More work of a stream uses these: a kernel, or the end of an op, where the engine tells the
    /// checker what it knows.
    pub(super) fn ended(&mut self, stream: usize, uses: &[(BlockId, AccessMode)]) {
        self.launched[stream] += 1;
        let number = self.launched[stream];
        for &(id, mode) in uses {
            let Some(at) = self.find(id) else { continue };
            let tensor = &mut self.tensors[at];
            if mode.writes() {
                (tensor.written, tensor.read) = ((stream, number), [0; STREAMS]);
            } else {
                tensor.read[stream] = number;
            }
        }
    }

    /// Frees a tensor as a framework does: whatever still runs.
    pub(super) fn free(&mut self, id: BlockId) -> Result<(), Stop> {
        let at = self.find(id).expect("lives");
        let Tensor { stream, written, read, .. } = self.tensors[at];
        let is_shown = self.tensors[at].is_large();
        for other in (0..STREAMS).filter(|&other| other != stream) {
            let last = read[other].max(if written.0 == other { written.1 } else { 0 });
            let is_used = last > self.behind[stream][other];
            self.tally.freed_in_use += u64::from(is_used);
            // What moves is told of at each op. All else is its stream's, as with any allocator:
            // its owner names the other stream, or waits for it.
            if is_shown || !is_used {
                continue;
            }
            if last.is_multiple_of(2) {
                self.engine.use_on(id, self.streams[other].0)?;
            } else if !self.tensors[at].recorded.contains(&other) {
                self.order(stream, other, last);
            }
        }
        self.engine.free(id)?;
        self.tensors.remove(at);
        Ok(())
    }

    /// The script waits for a stream, as by asking for a loss.
    pub(super) fn synchronize(&mut self, stream: usize) {
        self.check.synchronize_stream(self.streams[stream].1).expect("the device works");
    }

    /// An operator's call that can be made again for one of its outputs.
    pub(super) fn recipe(
        &self,
        stream: usize,
        inputs: &[(BlockId, Operand)],
        outputs: &[(BlockId, Operand)],
        scratch_bytes: Option<u64>,
    ) -> Recipe {
        let (inputs, outputs) = (inputs.to_vec(), outputs.to_vec());
        let (engine, check) = (self.engine.clone(), Arc::clone(&self.check));
        let (errors, replays) = (Arc::clone(&self.errors), Arc::clone(&self.replays));
        let (on, handle) = self.streams[stream];
        Recipe::new(move |ops, block| {
            *replays.lock().expect("no panic") += 1;
            ops.begin_on(super::REPLAY, on)?;
            for &(input, _) in &inputs {
                ops.touch(input, AccessMode::Read)?;
            }
            ops.touch(block, AccessMode::Write)?;
            let reads = inputs.iter().map(|&(_, operand)| operand);
            let output = outputs.iter().filter(|output| output.0 == block).map(|&(_, it)| it);
            let mut operands: Vec<Operand> = reads.collect();
            let scratch = match scratch_bytes {
                Some(size_bytes) => {
                    let fresh = engine.allocate_unshown(size_bytes, on, true)?;
                    let (id, start) = (fresh.block, fresh.address);
                    engine.use_on(id, on)?;
                    let (finds, leaves) = (None, Some(7));
                    operands.push(Operand { start, size_bytes, finds, leaves });
                    Some(id)
                }
                None => None,
            };
            operands.extend(output);
            let note = |stop: Stop| {
                errors.lock().expect("no panic").push(format!("a replay: {stop:?}"));
            };
            submit(&check, handle, operands, &errors).unwrap_or_else(note);
            scratch.map_or(Ok(()), |id| engine.free(id))?;
            ops.end()
        })
    }

    /// Everything that was found wrong until now.
    pub(super) fn verdict(&self) -> Result<(), String> {
        if let Some(error) = self.errors.lock().expect("no kernel panics").first() {
            return Err(format!("wrong bytes: {error}"));
        }
        match self.check.violations().first() {
            Some(violation) => Err(format!("not ordered: {violation:?}")),
            None => Ok(()),
        }
    }

    /// The end: nothing is held.
    pub(super) fn finish(self) -> Result<(Tally, u64), String> {
        let replays = *self.replays.lock().expect("no panic");
        let tally = Tally { replays, ..self.tally };
        let live_bytes_peak = self.live_bytes_peak;
        let Framework { host, check, engine, threads, event, streams, .. } = self;
        drop(threads);
        drop(engine);
        check.destroy_event(event).expect("the event is ours");
        for (_, handle) in &streams[1..] {
            check.destroy_stream(*handle).expect("the stream is ours");
        }
        let ledger = host.ledger();
        if !ledger.is_empty() {
            return Err(format!("something is left: {ledger:?}"));
        }
        match check.violations().first() {
            Some(violation) => Err(format!("not ordered at the end: {violation:?}")),
            None => Ok((tally, live_bytes_peak)),
        }
    }
}
