//! What counts as a use of a block, beside what ops note at their end.

use vmem::{BlockId, StreamId, Uses};

use crate::core::Core;
use crate::entry::{Entry, State};
use crate::error::Error;

/// Which ops are open, and whether all that run are told of.
#[derive(Debug)]
pub(crate) struct Watch {
    is_on: bool,
    /// Of each open op, on any thread, the stream that it runs on.
    streams_of_ops: Vec<StreamId>,
}

impl Default for Watch {
    fn default() -> Watch {
        Watch { is_on: true, streams_of_ops: Vec::new() }
    }
}

impl Watch {
    /// Whether every op that runs is told of. If not, nothing may leave.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }
}

impl Core {
    /// An op opens on this stream.
    pub(crate) fn op_began_on(&mut self, stream: StreamId) {
        self.watch.streams_of_ops.push(stream);
    }

    /// An op that was open on this stream no longer is.
    pub(crate) fn op_ended_on(&mut self, stream: StreamId) {
        let open = self.watch.streams_of_ops.iter().rposition(|&other| other == stream);
        self.watch.streams_of_ops.swap_remove(open.expect("an op ends once"));
    }

    /// Open ops note their uses when they end, and those of a block that is freed before will not
    /// find it. So what their streams were given until now counts as a use, and no other stream's
    /// work: who gets the memory next would wait for it.
    pub(crate) fn note_open_uses(&mut self, id: BlockId) {
        for index in 0..self.watch.streams_of_ops.len() {
            self.note_use_until_now(id, self.watch.streams_of_ops[index]);
        }
    }

    /// What nobody tells of notes no uses. So all that any stream was given until now counts as
    /// one.
    pub(crate) fn note_all_uses(&mut self, id: BlockId) {
        for &point in self.all_until_now().points() {
            self.memory.pool.note_use(id, point);
        }
    }

    /// All that any stream but those that copy was given until now.
    pub(crate) fn all_until_now(&mut self) -> Uses {
        let mut uses = Uses::default();
        for stream in self.compute_streams() {
            uses.add(self.memory.streams.advance(stream));
        }
        uses
    }

    /// What the streams of [`use_on`](crate::Engine::use_on) were given until now counts as a use.
    pub(crate) fn note_foreign_uses(&mut self, id: BlockId) -> Result<(), Error> {
        let mut index = 0;
        while let Some(&stream) = self.entry(id)?.streams.get(index) {
            self.note_use_until_now(id, stream);
            index += 1;
        }
        Ok(())
    }

    fn note_use_until_now(&mut self, id: BlockId, stream: StreamId) {
        let now = self.memory.streams.advance(stream);
        self.memory.pool.note_use(id, now);
    }

    /// From here ops may run that nobody tells of; or they have run, and used and written any
    /// block that was there, as all were.
    pub(crate) fn set_watched(&mut self, watched: bool) -> Result<(), Error> {
        self.watch.is_on = watched;
        self.memory.pool.let_nothing_leave(!watched);
        if !watched {
            return Ok(());
        }
        let is_there = |entry: &&Entry| entry.state == State::Resident;
        let there = self.entries.iter().filter(is_there).map(|entry| entry.id);
        let there: Vec<BlockId> = there.collect();
        let uses = self.all_until_now();
        for &id in &there {
            uses.points().iter().for_each(|&point| self.memory.pool.note_use(id, point));
        }
        for id in there {
            // One that its owner has freed goes with the last recipe that reads it.
            if self.entry(id).is_err() {
                continue;
            }
            self.drop_host_copy(id)?;
            self.entry_mut(id)?.change();
            self.drop_recipe(id)?;
            self.free_if_unneeded(id)?;
        }
        Ok(())
    }

    /// All streams but those that copy.
    pub(crate) fn compute_streams(&self) -> impl Iterator<Item = StreamId> + use<> {
        let copies = [self.streams.copy_out, self.streams.copy_in];
        self.memory.streams.ids().filter(move |stream| !copies.contains(stream))
    }
}
