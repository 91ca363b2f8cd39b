//! The checker without a driver: what may be submitted now, and what is then known.

use std::sync::Arc;

use smallvec::SmallVec;

use super::CheckConfig;
use super::clock::{Clock, Clocks, Epoch, Lane};
use super::memory::{Piece, Pieces, Space};
use super::shadow::{Frontier, Stamp};
use super::violation::{AccessSite, Address, Memory, Violation};
use crate::error::DriverError;
use crate::types::{Access, AccessMode, Copy, DevicePtr, StreamHandle, VaRange};

/// So many violations are kept; a run that goes on after an error must not fill memory with it.
const VIOLATIONS_KEPT_MAX: usize = 1000;

/// One access as its submitter declares it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    address: Address,
    size_bytes: u64,
    mode: AccessMode,
}

/// The accesses of one piece of work.
pub(super) type Declarations = SmallVec<[Declared; 4]>;

/// Work to be submitted.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) call: &'static str,
    pub(super) stream: StreamHandle,
    pub(super) operation: &'static str,
    pub(super) accesses: Declarations,
    /// Whether its writes must not overlap its other accesses.
    pub(super) disjoint: bool,
}

/// Work that may be submitted.
#[derive(Debug)]
pub(super) struct Admitted {
    lane: Lane,
    epoch: Epoch,
    accesses: SmallVec<[(Arc<Stamp>, Pieces); 4]>,
}

#[derive(Debug)]
pub(super) struct Checker {
    config: CheckConfig,
    pub(super) clocks: Clocks,
    pub(super) space: Space,
    pub(super) violations: Vec<Violation>,
    pub(super) violation_count: u64,
    pub(super) accesses_checked: u64,
    pub(super) waits_seen: u64,
    pub(super) foreign_calls: u64,
}

impl Checker {
    pub(super) fn new(config: CheckConfig) -> Checker {
        Checker {
            config,
            clocks: Clocks::default(),
            space: Space::default(),
            violations: Vec::new(),
            violation_count: 0,
            accesses_checked: 0,
            waits_seen: 0,
            foreign_calls: 0,
        }
    }

    /// Whether `work` may be submitted now. Nothing is noted yet: the driver may still refuse.
    pub(super) fn admit(&mut self, work: &Work) -> Result<Admitted, DriverError> {
        let lane = self.clocks.submit(work.stream);
        let epoch = self.clocks.next(lane);
        self.accesses_checked += work.accesses.len() as u64;
        match self.place(work, lane, epoch) {
            Ok(admitted) => Ok(admitted),
            Err(violation) => Err(self.refuse(work.call, *violation)),
        }
    }

    /// Notes work that was submitted.
    pub(super) fn submitted(&mut self, admitted: &Admitted) {
        let clock = self.clocks.of(admitted.lane);
        let host = self.clocks.host();
        for (stamp, pieces) in &admitted.accesses {
            for piece in pieces {
                let (tracked, window_uses) = self.space.touched(piece);
                tracked.shadow.apply(&piece.bytes, stamp, clock, host);
                tracked.uses.push(stamp, clock);
                if let Some(uses) = window_uses {
                    uses.push(stamp, clock);
                }
            }
        }
        self.clocks.advance(admitted.epoch);
    }

    /// Whether the host may unmap `range` now.
    pub(super) fn may_unmap(&mut self, range: VaRange) -> Result<(), DriverError> {
        let verdict = match self.space.mapping(range) {
            Some((memory, uses)) => idle("unmap", memory, uses, self.clocks.host()),
            None => {
                let why = "the range is not one whole mapping";
                Err(Box::new(Violation::Misuse { call: "unmap", why }))
            }
        };
        verdict.map_err(|violation| self.refuse("unmap", *violation))
    }

    /// Whether the host may give `memory` back now.
    pub(super) fn may_give_back(
        &mut self,
        call: &'static str,
        memory: Memory,
    ) -> Result<(), DriverError> {
        let mapped = matches!(memory, Memory::Chunk(_)) && self.space.windows_of(memory) > 0;
        let verdict = match self.space.tracked(memory) {
            Some(tracked) => idle(call, memory, &tracked.uses, self.clocks.host()),
            None => Ok(()),
        };
        let verdict = match verdict {
            Ok(()) if mapped => {
                let why = "the chunk is still mapped";
                Err(Box::new(Violation::Misuse { call, why }))
            }
            other => other,
        };
        verdict.map_err(|violation| self.refuse(call, *violation))
    }

    /// Whether the host may give the addresses of `range` back now.
    pub(super) fn may_free_range(&mut self, range: VaRange) -> Result<(), DriverError> {
        if self.space.is_mapped(range) {
            let why = "memory is still mapped in the range";
            return Err(self.refuse("free_range", Violation::Misuse { call: "free_range", why }));
        }
        Ok(())
    }

    fn refuse(&mut self, call: &'static str, violation: Violation) -> DriverError {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_KEPT_MAX {
            self.violations.push(violation.clone());
        }
        violation.into_error(call)
    }

    fn place(&self, work: &Work, lane: Lane, epoch: Epoch) -> Result<Admitted, Box<Violation>> {
        let mut accesses: SmallVec<[(Arc<Stamp>, Pieces); 4]> = SmallVec::new();
        for &Declared { address, size_bytes, mode } in &work.accesses {
            let Work { stream, operation, .. } = *work;
            let number = epoch.number;
            let site = AccessSite { stream, operation, number, address, size_bytes, mode };
            let pieces = self
                .space
                .resolve(address, size_bytes)
                .map_err(|why| Box::new(Violation::Unreachable { access: site, why }))?;
            for piece in &pieces {
                self.check(site, piece, self.clocks.of(lane))?;
                if work.disjoint {
                    overlap_within(site, piece, &accesses)?;
                }
            }
            accesses.push((Arc::new(Stamp { epoch, site }), pieces));
        }
        Ok(Admitted { lane, epoch, accesses })
    }

    fn check(&self, site: AccessSite, piece: &Piece, clock: &Clock) -> Result<(), Box<Violation>> {
        let memory = piece.memory;
        let tracked = self.space.tracked(memory).expect("a piece was just resolved");
        if let Some((earlier, shared_bytes)) =
            tracked.shadow.conflict(&piece.bytes, site.mode.writes(), clock)
        {
            let earlier = earlier.site;
            return Err(Box::new(Violation::Race { earlier, later: site, memory, shared_bytes }));
        }
        let on_device = !matches!(memory, Memory::Host(_));
        let reads_device = site.mode != AccessMode::Write && on_device;
        if self.config.uninitialised_reads
            && reads_device
            && let Some(unwritten_bytes) = tracked.shadow.unwritten(&piece.bytes)
        {
            let violation = Violation::Uninitialised { access: site, memory, unwritten_bytes };
            return Err(Box::new(violation));
        }
        Ok(())
    }
}

/// Whether the host knows that all `uses` are complete.
fn idle(
    call: &'static str,
    memory: Memory,
    uses: &Frontier,
    host: &Clock,
) -> Result<(), Box<Violation>> {
    match uses.beyond(host) {
        Some(stamp) => Err(Box::new(Violation::InUse { call, access: stamp.site, memory })),
        None => Ok(()),
    }
}

/// Whether an access of a piece of work overlaps one that the same work declared before.
fn overlap_within(
    site: AccessSite,
    piece: &Piece,
    before: &[(Arc<Stamp>, Pieces)],
) -> Result<(), Box<Violation>> {
    for (stamp, others) in before {
        if !site.mode.writes() && !stamp.site.mode.writes() {
            continue;
        }
        for other in others.iter().filter(|other| other.memory == piece.memory) {
            let shared_bytes =
                piece.bytes.start.max(other.bytes.start)..piece.bytes.end.min(other.bytes.end);
            if !shared_bytes.is_empty() {
                let (earlier, memory) = (stamp.site, piece.memory);
                let race = Violation::Race { earlier, later: site, memory, shared_bytes };
                return Err(Box::new(race));
            }
        }
    }
    Ok(())
}

/// What a copy reads and writes.
pub(super) fn copy_accesses(copy: Copy) -> Declarations {
    let size_bytes = copy.size_bytes();
    let (source, target) = match copy {
        Copy::DeviceToHost { source, target, .. } => {
            (Address::Device(source), Address::Host(target))
        }
        Copy::HostToDevice { source, target, .. } => {
            (Address::Host(source), Address::Device(target))
        }
        Copy::DeviceToDevice { source, target, .. } => {
            (Address::Device(source), Address::Device(target))
        }
    };
    let read = Declared { address: source, size_bytes, mode: AccessMode::Read };
    let write = Declared { address: target, size_bytes, mode: AccessMode::Write };
    Declarations::from_iter([read, write])
}

/// What a fill writes.
pub(super) fn fill_accesses(target: DevicePtr, size_bytes: u64) -> Declarations {
    let address = Address::Device(target);
    Declarations::from_iter([Declared { address, size_bytes, mode: AccessMode::Write }])
}

/// What declared device accesses use.
pub(super) fn device_accesses(accesses: &[Access]) -> Declarations {
    let declared = |&Access { start, size_bytes, mode }: &Access| Declared {
        address: Address::Device(start),
        size_bytes,
        mode,
    };
    accesses.iter().map(declared).collect()
}
