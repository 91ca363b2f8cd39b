//! The judge: a graph of what waits for what, searched anew for every question.

use std::collections::{BTreeMap, BTreeSet};

use npu_sys::{EventHandle, StreamHandle};

/// One byte of one piece of memory, and the mapping through which it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Byte {
    pub(crate) memory: u64,
    pub(crate) offset: u64,
    pub(crate) mapping: Option<u64>,
}

/// One access of a piece of work; no bytes if some cannot be reached.
#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) bytes: Option<Vec<Byte>>,
    pub(crate) writes: bool,
}

/// What is wrong with a piece of work.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) unreachable: bool,
    /// Streams of earlier accesses that conflict, with the offset of the byte.
    pub(crate) conflicts: BTreeSet<(StreamHandle, u64)>,
}

#[derive(Debug)]
struct Past {
    node: usize,
    stream: StreamHandle,
    byte: Byte,
    writes: bool,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    /// For each node, those that are complete before it starts.
    before: Vec<Vec<usize>>,
    /// What the host knows now.
    host: usize,
    latest: BTreeMap<StreamHandle, usize>,
    events: BTreeMap<EventHandle, usize>,
    past: Vec<Past>,
}

impl Oracle {
    pub(crate) fn new() -> Oracle {
        Oracle {
            before: vec![Vec::new()],
            host: 0,
            latest: BTreeMap::new(),
            events: BTreeMap::new(),
            past: Vec::new(),
        }
    }

    /// Judges work, and notes it if nothing is wrong with it.
    pub(crate) fn work(&mut self, stream: StreamHandle, uses: &[Use], disjoint: bool) -> Verdict {
        let done = self.reachable_from(&self.submitted_after(stream));
        let mut conflicts = BTreeSet::new();
        for (index, Use { bytes, writes }) in uses.iter().enumerate() {
            for byte in bytes.iter().flatten() {
                let same =
                    |other: &Byte| (other.memory, other.offset) == (byte.memory, byte.offset);
                for past in &self.past {
                    let clash = (*writes || past.writes) && same(&past.byte);
                    if clash && !done.contains(&past.node) {
                        conflicts.insert((past.stream, byte.offset));
                    }
                }
                for other in
                    uses[..index].iter().filter(|other| disjoint && (*writes || other.writes))
                {
                    if other.bytes.iter().flatten().any(same) {
                        conflicts.insert((stream, byte.offset));
                    }
                }
            }
        }
        let unreachable = uses.iter().any(|access| access.bytes.is_none());
        if !unreachable && conflicts.is_empty() {
            let node = self.submit(stream, None);
            for Use { bytes, writes } in uses {
                let past = |&byte: &Byte| Past { node, stream, byte, writes: *writes };
                self.past.extend(bytes.iter().flatten().map(past));
            }
        }
        Verdict { unreachable, conflicts }
    }

    pub(crate) fn record(&mut self, event: EventHandle, stream: StreamHandle) {
        let node = self.submit(stream, None);
        self.events.insert(event, node);
    }

    pub(crate) fn wait(&mut self, stream: StreamHandle, event: EventHandle) {
        self.submit(stream, self.events.get(&event).copied());
    }

    pub(crate) fn host_waits_for_event(&mut self, event: EventHandle) {
        self.host = self.node([self.host].into_iter().chain(self.events.get(&event).copied()));
    }

    pub(crate) fn host_waits_for_stream(&mut self, stream: StreamHandle) {
        self.host = self.node([self.host].into_iter().chain(self.latest.get(&stream).copied()));
    }

    pub(crate) fn destroy_stream(&mut self, stream: StreamHandle) {
        self.latest.remove(&stream);
    }

    pub(crate) fn destroy_event(&mut self, event: EventHandle) {
        self.events.remove(&event);
    }

    /// Whether the host knows that all uses through a mapping are complete.
    pub(crate) fn is_mapping_idle(&self, mapping: u64) -> bool {
        self.are_complete(|past| past.byte.mapping == Some(mapping))
    }

    /// Whether the host knows that all uses of a piece of memory are complete.
    pub(crate) fn is_memory_idle(&self, memory: u64) -> bool {
        self.are_complete(|past| past.byte.memory == memory)
    }

    fn are_complete(&self, which: impl Fn(&Past) -> bool) -> bool {
        let done = self.reachable_from(&[self.host]);
        self.past.iter().filter(|past| which(past)).all(|past| done.contains(&past.node))
    }

    fn submitted_after(&self, stream: StreamHandle) -> Vec<usize> {
        [self.host].into_iter().chain(self.latest.get(&stream).copied()).collect()
    }

    fn submit(&mut self, stream: StreamHandle, waits_for: Option<usize>) -> usize {
        let before: Vec<usize> =
            self.submitted_after(stream).into_iter().chain(waits_for).collect();
        let node = self.node(before.into_iter());
        self.latest.insert(stream, node);
        node
    }

    fn node(&mut self, before: impl Iterator<Item = usize>) -> usize {
        let before = before.collect();
        self.before.push(before);
        self.before.len() - 1
    }

    fn reachable_from(&self, starts: &[usize]) -> BTreeSet<usize> {
        let mut seen = BTreeSet::new();
        let mut open = starts.to_vec();
        while let Some(node) = open.pop() {
            if seen.insert(node) {
                open.extend(&self.before[node]);
            }
        }
        seen
    }
}
