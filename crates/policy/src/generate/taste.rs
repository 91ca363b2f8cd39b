//! Which blocks the choice of what leaves likes more or less than their cost says.

use super::select::Mode;

/// What is done with some blocks whatever it costs, as far as the limit needs it.
const LIKED: f64 = 1e-3;
/// What is done with some blocks only where nothing else is left.
const DISLIKED: f64 = 1e6;

/// A wish for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// By its cost.
    Any,
    Swap,
    Recompute,
    Stay,
}

impl Wish {
    pub(super) const ALL: [Wish; 4] = [Wish::Recompute, Wish::Swap, Wish::Stay, Wish::Any];
}

/// A wish for each block.
#[derive(Clone, Debug)]
pub(super) struct Taste(Vec<Wish>);

impl Taste {
    /// No wishes.
    pub(super) fn neutral(block_count: usize) -> Taste {
        Taste(vec![Wish::Any; block_count])
    }

    pub(super) fn set(&mut self, block: u32, wish: Wish) {
        self.0[block as usize] = wish;
    }

    pub(super) fn get(&self, block: u32) -> Wish {
        self.0[block as usize]
    }

    /// What the cost of a choice is multiplied with.
    pub(super) fn factor(&self, block: u32, mode: Mode) -> f64 {
        match (self.0[block as usize], mode) {
            (Wish::Any, _) => 1.0,
            (Wish::Swap, Mode::Swap) | (Wish::Recompute, Mode::Recompute) => LIKED,
            _ => DISLIKED,
        }
    }
}
