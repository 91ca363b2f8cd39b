//! How long work takes by the model: the link's shared bandwidth, and costs that are fixed.

use crate::host::config::HostLink;
use crate::host::effect::{Direction, Task};

/// Fills and copies inside the device run at 1 TB/s.
const DEVICE_BYTES_PER_US: f64 = 1e6;

/// Time of a task that does not depend on what else runs, in microseconds.
pub(super) fn fixed_us(task: &Task) -> f64 {
    match task {
        Task::Copy(copy) => copy.size_bytes() as f64 / DEVICE_BYTES_PER_US,
        Task::Fill { size_bytes, .. } => *size_bytes as f64 / DEVICE_BYTES_PER_US,
        Task::Function(function) => function.cost_us,
    }
}

/// Time of a copy that has the link for itself, in microseconds.
pub(super) fn alone_us(link: Option<HostLink>, direction: Direction, size_bytes: u64) -> f64 {
    link.map_or(0.0, |link| size_bytes as f64 / bytes_per_us(link, direction, false))
}

fn bytes_per_us(link: HostLink, direction: Direction, both: bool) -> f64 {
    let bytes_per_s = match direction {
        _ if both => link.both_bytes_per_s,
        Direction::Out => link.out_bytes_per_s,
        Direction::In => link.in_bytes_per_s,
    };
    bytes_per_s as f64 / 1e6
}

/// The link as a fluid: at most one copy in each direction, and the rate of a copy changes at
/// the moment when one in the other direction starts or stops.
#[derive(Debug)]
pub(super) struct LinkModel {
    link: HostLink,
    lanes: [Lane; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    flow: Option<Flow>,
    free_us: f64,
}

/// A running copy: what was left at a moment, and the rate since.
#[derive(Debug, Clone, Copy)]
struct Flow {
    left_bytes: f64,
    since_us: f64,
    bytes_per_us: f64,
}

impl Direction {
    pub(super) fn index(self) -> usize {
        match self {
            Direction::Out => 0,
            Direction::In => 1,
        }
    }

    fn other(self) -> Direction {
        match self {
            Direction::Out => Direction::In,
            Direction::In => Direction::Out,
        }
    }
}

impl LinkModel {
    pub(super) fn new(link: HostLink) -> LinkModel {
        LinkModel { link, lanes: [Lane::default(); 2] }
    }

    pub(super) fn is_busy(&self, direction: Direction) -> bool {
        self.lanes[direction.index()].flow.is_some()
    }

    /// When the last copy in this direction was complete.
    pub(super) fn free_us(&self, direction: Direction) -> f64 {
        self.lanes[direction.index()].free_us
    }

    /// Starts a copy; the direction must be free.
    pub(super) fn start(&mut self, direction: Direction, size_bytes: u64, at_us: f64) {
        assert!(!self.is_busy(direction), "one copy at a time in each direction");
        let both = self.is_busy(direction.other());
        self.lanes[direction.index()].flow = Some(Flow {
            left_bytes: size_bytes as f64,
            since_us: at_us,
            bytes_per_us: bytes_per_us(self.link, direction, both),
        });
        self.change_rate(direction.other(), at_us, true);
    }

    /// When the running copy will be complete if nothing starts or stops before.
    pub(super) fn finish_us(&self, direction: Direction) -> Option<f64> {
        let flow = self.lanes[direction.index()].flow?;
        Some(flow.since_us + flow.left_bytes / flow.bytes_per_us)
    }

    /// Ends the running copy.
    pub(super) fn stop(&mut self, direction: Direction, at_us: f64) {
        self.lanes[direction.index()] = Lane { flow: None, free_us: at_us };
        self.change_rate(direction.other(), at_us, false);
    }

    fn change_rate(&mut self, direction: Direction, at_us: f64, both: bool) {
        let rate = bytes_per_us(self.link, direction, both);
        if let Some(flow) = &mut self.lanes[direction.index()].flow {
            // On threads the moments of the two lanes may come a little out of order.
            let at_us = at_us.max(flow.since_us);
            let moved_bytes = (at_us - flow.since_us) * flow.bytes_per_us;
            flow.left_bytes = (flow.left_bytes - moved_bytes).max(0.0);
            flow.since_us = at_us;
            flow.bytes_per_us = rate;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_share_only_while_both_run() {
        let link = HostLink {
            out_bytes_per_s: 1_000_000_000,
            in_bytes_per_s: 2_000_000_000,
            both_bytes_per_s: 500_000_000,
        };
        let mut model = LinkModel::new(link);
        model.start(Direction::Out, 100_000, 0.0);
        assert_eq!(model.finish_us(Direction::Out), Some(100.0));
        // Half is out when the other begins; each then moves 500 bytes per microsecond.
        model.start(Direction::In, 40_000, 50.0);
        assert_eq!(model.finish_us(Direction::Out), Some(150.0));
        assert_eq!(model.finish_us(Direction::In), Some(130.0));
        model.stop(Direction::In, 130.0);
        // 10,000 bytes are left at 1,000 bytes per microsecond.
        assert_eq!(model.finish_us(Direction::Out), Some(140.0));
        model.stop(Direction::Out, 140.0);
        assert_eq!((model.is_busy(Direction::Out), model.free_us(Direction::Out)), (false, 140.0));
        assert_eq!(alone_us(Some(link), Direction::In, 2_000), 1.0);
    }
}
