//! What kernels and recipes do, and what they share with the runner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use swap_core::{AccessMode, BlockId, Error, OpStack, Operands, StreamId};

use super::NAMES;

/// The `index`-th word of a block that holds pattern `tag`.
pub(crate) fn word(tag: u64, index: usize) -> u64 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(index as u64 * 0x0001_0000_0001)
}

/// What kernels and recipes, which run elsewhere, share with the runner.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Wrong bytes that kernels saw.
    pub(crate) errors: Vec<String>,
    /// The swappable blocks of each open op, replays included, with their physical bytes.
    pub(super) open: Vec<BTreeMap<BlockId, u64>>,
    /// What any block may take, however small: a lot, under orders for several sizes.
    pub(super) lot_bytes_max: u64,
    /// Bytes that the op at which memory ran out needed beside those around it.
    pub(super) needed_bytes: Option<u64>,
    pub(crate) kernels: u64,
    pub(crate) words_checked: u64,
    pub(crate) replays: u64,
}

impl Shared {
    pub(super) fn open_bytes(&self) -> u64 {
        let mut all: BTreeMap<BlockId, u64> = BTreeMap::new();
        for frame in &self.open {
            all.extend(frame);
        }
        all.values().map(|&bytes| bytes.max(self.lot_bytes_max)).sum()
    }
}

pub(crate) type SharedRef = Arc<Mutex<Shared>>;

/// What one kernel does: by operand, the pattern it must find and the one it leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    pub(super) finds: Vec<Option<u64>>,
    pub(super) leaves: Vec<Option<u64>>,
}

impl Kernel {
    /// The same for some of the operands.
    pub(super) fn only(&self, operands: &[usize]) -> Kernel {
        let pick = |tags: &[Option<u64>]| operands.iter().map(|&at| tags[at]).collect();
        Kernel { finds: pick(&self.finds), leaves: pick(&self.leaves) }
    }

    pub(super) fn body(
        &self,
        shared: &SharedRef,
        what: &str,
    ) -> impl FnOnce(&Operands<'_>) + Send + 'static {
        let (kernel, shared, what) = (self.clone(), Arc::clone(shared), what.to_owned());
        move |operands| {
            let mut wrong = Vec::new();
            let mut checked = 0;
            for (index, (finds, leaves)) in kernel.finds.iter().zip(&kernel.leaves).enumerate() {
                let mut look = |words: &[u64]| {
                    let Some(tag) = *finds else { return };
                    checked += words.len() as u64;
                    let bad = words.iter().enumerate().find(|&(at, &is)| is != word(tag, at));
                    if let Some((at, is)) = bad {
                        let must = word(tag, at);
                        wrong.push(format!(
                            "{what}: operand {index} word {at}: {is:#x}, not {must:#x}"
                        ));
                    }
                };
                match leaves {
                    None => look(operands.read::<u64>(index)),
                    Some(tag) => {
                        let words = operands.write::<u64>(index);
                        look(words);
                        for (at, word_) in words.iter_mut().enumerate() {
                            *word_ = word(*tag, at);
                        }
                    }
                }
            }
            let mut shared = shared.lock().expect("no kernel panics");
            shared.errors.extend(wrong);
            shared.kernels += 1;
            shared.words_checked += checked;
        }
    }
}

/// What a recipe does: the op once more.
pub(super) fn replay(
    ops: &mut OpStack,
    stream: StreamId,
    blocks: &[(BlockId, u64, AccessMode)],
    kernel: &Kernel,
    shared: &SharedRef,
) -> Result<(), Error> {
    ops.begin_on(NAMES[0][1], stream)?;
    for &(id, _, mode) in blocks {
        ops.touch(id, mode)?;
    }
    ops.launch(10.0, kernel.body(shared, "replay"))?;
    ops.end()
}
