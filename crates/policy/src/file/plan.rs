//! The plan file's content: mirror types, checksum and checks.

use std::num::NonZeroU64;
use std::path::Path;

use serde::{Deserialize, Serialize};
use swap_core::{
    Action, ActionKind, BlockIndex, OpIndex, Origin, Phase, Plan, PlanBlock, Signature,
};

use super::SavedPlan;
use super::json::{Expected, check_head, hex};
use crate::error::{FileError, PlanFault};

const EXPECTED: Expected = Expected { what: "plan", format: "smartswap-plan", version: 2 };
/// The version of plans for a step as it was recorded.
const VERSION_WHOLE: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMirror {
    format: String,
    version: u64,
    crc32: String,
    body: BodyMirror,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BodyMirror {
    #[serde(with = "hex")]
    signature: u64,
    op_count: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part_bytes: Option<NonZeroU64>,
    blocks: Vec<BlockMirror>,
    actions: Vec<ActionMirror>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockMirror {
    index: u32,
    size_bytes: u64,
    origin: OriginMirror,
}

/// Where a block came from; traces have it too.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OriginMirror {
    Persistent,
    Op(u32),
    Before(u32),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionMirror {
    op: u32,
    phase: PhaseMirror,
    kind: KindMirror,
    block: u32,
    due: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PhaseMirror {
    Begin,
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindMirror {
    SwapOut,
    SwapIn,
    Discard,
    Replay,
}

/// The file of a plan.
pub(super) fn write(plan: &Plan, part_bytes: Option<NonZeroU64>) -> String {
    let body = BodyMirror { part_bytes, ..BodyMirror::of(plan) };
    let file = FileMirror {
        format: EXPECTED.format.to_owned(),
        version: version(part_bytes),
        crc32: checksum(&body),
        body,
    };
    serde_json::to_string(&file).expect("mirror types have string keys and no failing fields")
}

/// The plan of a file.
pub(super) fn read(bytes: &[u8], path: &Path) -> Result<SavedPlan, FileError> {
    check_head(bytes, path, &EXPECTED)?;
    let file: FileMirror = serde_json::from_slice(bytes)
        .map_err(|source| FileError::Malformed { path: path.to_owned(), source })?;
    let found = checksum(&file.body);
    if found != file.crc32 {
        let expected = file.crc32;
        return Err(FileError::Checksum { path: path.to_owned(), expected, found });
    }
    let broken = |fault| FileError::Plan { path: path.to_owned(), fault };
    let part_bytes = file.body.part_bytes;
    if file.version != version(part_bytes) {
        return Err(broken(PlanFault::Version { version: file.version }));
    }
    let plan = file.body.into_plan();
    check(&plan).map_err(broken)?;
    Ok(SavedPlan { plan, part_bytes })
}

/// Readers of version 1 know nothing of parts.
fn version(part_bytes: Option<NonZeroU64>) -> u64 {
    if part_bytes.is_some() { EXPECTED.version } else { VERSION_WHOLE }
}

/// Whether the plan's indexes are in range and its actions in order.
pub(super) fn check(plan: &Plan) -> Result<(), PlanFault> {
    let op_count = plan.op_count;
    let mut before: Option<BlockIndex> = None;
    for (position, block) in plan.blocks.iter().enumerate() {
        let origin_exists = match block.origin {
            Origin::Persistent => true,
            Origin::Op(op) => op.0 < op_count,
            // After the last op is before the op that would follow.
            Origin::Before(op) => op.0 <= op_count,
        };
        let is_sorted = before.is_none_or(|before| before < block.index);
        if !origin_exists || !is_sorted || block.size_bytes == 0 {
            return Err(PlanFault::Block { position });
        }
        before = Some(block.index);
    }
    let mut before = None;
    for (position, action) in plan.actions.iter().enumerate() {
        for op in [action.op.0, action.due.0] {
            if op >= op_count {
                return Err(PlanFault::Op { position, op, op_count });
            }
        }
        if plan.blocks.binary_search_by_key(&action.block, |block| block.index).is_err() {
            return Err(PlanFault::UnknownBlock { position, block: action.block.0 });
        }
        let when = Some((action.op, action.phase));
        if when < before {
            return Err(PlanFault::Order { position });
        }
        before = when;
    }
    Ok(())
}

fn checksum(body: &BodyMirror) -> String {
    let canonical =
        serde_json::to_vec(body).expect("mirror types have string keys and no failing fields");
    format!("{:08x}", crc32fast::hash(&canonical))
}

impl BodyMirror {
    fn of(plan: &Plan) -> BodyMirror {
        let blocks = plan.blocks.iter().map(|block| BlockMirror {
            index: block.index.0,
            size_bytes: block.size_bytes,
            origin: OriginMirror::of(block.origin),
        });
        let actions = plan.actions.iter().map(|action| ActionMirror {
            op: action.op.0,
            phase: match action.phase {
                Phase::Begin => PhaseMirror::Begin,
                Phase::End => PhaseMirror::End,
            },
            kind: match action.kind {
                ActionKind::SwapOut => KindMirror::SwapOut,
                ActionKind::SwapIn => KindMirror::SwapIn,
                ActionKind::Discard => KindMirror::Discard,
                ActionKind::Replay => KindMirror::Replay,
            },
            block: action.block.0,
            due: action.due.0,
        });
        BodyMirror {
            signature: plan.signature.0,
            op_count: plan.op_count,
            part_bytes: None,
            blocks: blocks.collect(),
            actions: actions.collect(),
        }
    }

    fn into_plan(self) -> Plan {
        let blocks = self.blocks.into_iter().map(|block| PlanBlock {
            index: BlockIndex(block.index),
            size_bytes: block.size_bytes,
            origin: block.origin.into_origin(),
        });
        let actions = self.actions.into_iter().map(|action| Action {
            op: OpIndex(action.op),
            phase: match action.phase {
                PhaseMirror::Begin => Phase::Begin,
                PhaseMirror::End => Phase::End,
            },
            kind: match action.kind {
                KindMirror::SwapOut => ActionKind::SwapOut,
                KindMirror::SwapIn => ActionKind::SwapIn,
                KindMirror::Discard => ActionKind::Discard,
                KindMirror::Replay => ActionKind::Replay,
            },
            block: BlockIndex(action.block),
            due: OpIndex(action.due),
        });
        Plan {
            signature: Signature(self.signature),
            op_count: self.op_count,
            blocks: blocks.collect(),
            actions: actions.collect(),
        }
    }
}

impl OriginMirror {
    pub(super) fn of(origin: Origin) -> OriginMirror {
        match origin {
            Origin::Persistent => OriginMirror::Persistent,
            Origin::Op(op) => OriginMirror::Op(op.0),
            Origin::Before(op) => OriginMirror::Before(op.0),
        }
    }

    pub(super) fn into_origin(self) -> Origin {
        match self {
            OriginMirror::Persistent => Origin::Persistent,
            OriginMirror::Op(op) => Origin::Op(OpIndex(op)),
            OriginMirror::Before(op) => Origin::Before(OpIndex(op)),
        }
    }
}
