//! The file of a measured step's lanes, with those that were predicted beside them.

use std::path::Path;

use serde::{Deserialize, Serialize};
use swap_core::{
    BlockIndex, Direction, LaneCopy, LaneOp, LaneReplay, LaneWait, Lanes, OpIndex, Trace,
};

use super::json::{Expected, check_head};
use crate::error::FileError;

const EXPECTED: Expected = Expected { what: "lanes", format: "smartswap-lanes", version: 1 };

#[derive(Serialize, Deserialize)]
struct FileMirror {
    format: String,
    version: u64,
    measured: LanesMirror,
    predicted: LanesMirror,
}

#[derive(Serialize, Deserialize)]
struct LanesMirror {
    step_us: f64,
    ops: Vec<OpMirror>,
    replays: Vec<ReplayMirror>,
    copies: Vec<CopyMirror>,
    waits: Vec<WaitMirror>,
}

#[derive(Serialize, Deserialize)]
struct OpMirror {
    op: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_us: Option<(f64, f64)>,
    start_us: f64,
    end_us: f64,
}

#[derive(Serialize, Deserialize)]
struct ReplayMirror {
    name: String,
    start_us: f64,
    end_us: f64,
}

#[derive(Serialize, Deserialize)]
struct CopyMirror {
    block: Option<u32>,
    direction: DirectionMirror,
    size_bytes: u64,
    start_us: f64,
    end_us: f64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DirectionMirror {
    Out,
    In,
}

#[derive(Serialize, Deserialize)]
struct WaitMirror {
    op: u32,
    copy: Option<usize>,
    start_us: f64,
    end_us: f64,
}

/// The file of lanes.
pub(super) fn write(measured: &Lanes, predicted: &Lanes) -> String {
    let file = FileMirror {
        format: EXPECTED.format.to_owned(),
        version: EXPECTED.version,
        measured: LanesMirror::of(measured),
        predicted: LanesMirror::of(predicted),
    };
    serde_json::to_string(&file).expect("mirror types have string keys and no failing fields")
}

/// The measured lanes of a file, which are of this step.
pub(super) fn read(bytes: &[u8], path: &Path, trace: &Trace) -> Result<Lanes, FileError> {
    check_head(bytes, path, &EXPECTED)?;
    let malformed = |source| FileError::Malformed { path: path.to_owned(), source };
    let file: FileMirror = serde_json::from_slice(bytes).map_err(malformed)?;
    let lanes = file.measured.into_lanes();
    let other = || FileError::OtherStep { path: path.to_owned() };
    is_of(&lanes, trace).then_some(lanes).ok_or_else(other)
}

/// Whether all that lanes name is in the step, and their times are times.
fn is_of(lanes: &Lanes, trace: &Trace) -> bool {
    let is_outermost =
        |op: OpIndex| trace.ops.get(op.0 as usize).is_some_and(|found| found.depth == 0);
    let is_span = |start_us: f64, end_us: f64| {
        start_us.is_finite() && end_us.is_finite() && start_us <= end_us
    };
    let is_op = |op: &LaneOp| {
        let host_is_span = op.host_us.is_none_or(|(start_us, end_us)| is_span(start_us, end_us));
        is_outermost(op.op) && is_span(op.start_us, op.end_us) && host_is_span
    };
    let is_copy = |copy: &LaneCopy| is_span(copy.start_us, copy.end_us) && copy.is_of(trace);
    let is_wait = |wait: &LaneWait| {
        let is_known = wait.copy.is_none_or(|copy| copy < lanes.copies.len());
        is_outermost(wait.op) && is_known && is_span(wait.start_us, wait.end_us)
    };
    is_span(0.0, lanes.step_us)
        && lanes.ops.is_sorted_by(|one, other| one.op < other.op)
        && lanes.waits.is_sorted_by(|one, other| one.op <= other.op)
        && lanes.ops.iter().all(is_op)
        && lanes.replays.iter().all(|replay| is_span(replay.start_us, replay.end_us))
        && lanes.copies.iter().all(is_copy)
        && lanes.waits.iter().all(is_wait)
}

impl LanesMirror {
    fn of(lanes: &Lanes) -> LanesMirror {
        let op = |op: &LaneOp| OpMirror {
            op: op.op.0,
            host_us: op.host_us,
            start_us: op.start_us,
            end_us: op.end_us,
        };
        let replay = |replay: &LaneReplay| ReplayMirror {
            name: replay.name.clone(),
            start_us: replay.start_us,
            end_us: replay.end_us,
        };
        let copy = |copy: &LaneCopy| CopyMirror {
            block: copy.block.map(|block| block.0),
            direction: match copy.direction {
                Direction::Out => DirectionMirror::Out,
                Direction::In => DirectionMirror::In,
            },
            size_bytes: copy.size_bytes,
            start_us: copy.start_us,
            end_us: copy.end_us,
        };
        let wait = |wait: &LaneWait| WaitMirror {
            op: wait.op.0,
            copy: wait.copy,
            start_us: wait.start_us,
            end_us: wait.end_us,
        };
        LanesMirror {
            step_us: lanes.step_us,
            ops: lanes.ops.iter().map(op).collect(),
            replays: lanes.replays.iter().map(replay).collect(),
            copies: lanes.copies.iter().map(copy).collect(),
            waits: lanes.waits.iter().map(wait).collect(),
        }
    }

    fn into_lanes(self) -> Lanes {
        let op = |op: OpMirror| LaneOp {
            op: OpIndex(op.op),
            host_us: op.host_us,
            start_us: op.start_us,
            end_us: op.end_us,
        };
        let replay = |replay: ReplayMirror| LaneReplay {
            name: replay.name,
            start_us: replay.start_us,
            end_us: replay.end_us,
        };
        let copy = |copy: CopyMirror| LaneCopy {
            block: copy.block.map(BlockIndex),
            direction: match copy.direction {
                DirectionMirror::Out => Direction::Out,
                DirectionMirror::In => Direction::In,
            },
            size_bytes: copy.size_bytes,
            start_us: copy.start_us,
            end_us: copy.end_us,
        };
        let wait = |wait: WaitMirror| LaneWait {
            op: OpIndex(wait.op),
            copy: wait.copy,
            start_us: wait.start_us,
            end_us: wait.end_us,
        };
        Lanes {
            step_us: self.step_us,
            ops: self.ops.into_iter().map(op).collect(),
            replays: self.replays.into_iter().map(replay).collect(),
            copies: self.copies.into_iter().map(copy).collect(),
            waits: self.waits.into_iter().map(wait).collect(),
        }
    }
}
