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
    /// By its cost, but made again only where nothing else is left.
    NotRecompute,
}

impl Wish {
    pub(super) const ALL: [Wish; 4] = [Wish::Recompute, Wish::Swap, Wish::Stay, Wish::Any];
}

/// A wish for each block, and how early it is to be back.
#[derive(Clone, Debug)]
pub(super) struct Taste {
    wishes: Vec<Wish>,
    /// By block: how long before its next use a copy of it is back, in microseconds.
    lead_us: Vec<f32>,
    /// By block: whether it is copied to the host as soon as its bytes are new.
    early: Vec<bool>,
}

impl Taste {
    /// No wishes.
    pub(super) fn neutral(block_count: usize) -> Taste {
        Taste {
            wishes: vec![Wish::Any; block_count],
            lead_us: vec![0.0; block_count],
            early: vec![false; block_count],
        }
    }

    pub(super) fn set(&mut self, block: u32, wish: Wish) {
        self.wishes[block as usize] = wish;
    }

    pub(super) fn get(&self, block: u32) -> Wish {
        self.wishes[block as usize]
    }

    pub(super) fn lead_us(&self, block: u32) -> f64 {
        f64::from(self.lead_us[block as usize])
    }

    pub(super) fn set_lead_us(&mut self, block: u32, lead_us: f64) {
        self.lead_us[block as usize] = lead_us as f32;
    }

    pub(super) fn has_early(&self) -> bool {
        self.early.contains(&true)
    }

    pub(super) fn is_early(&self, block: u32) -> bool {
        self.early[block as usize]
    }

    pub(super) fn set_early(&mut self, block: u32) {
        self.early[block as usize] = true;
    }

    /// What the cost of a choice is multiplied with.
    pub(super) fn factor(&self, block: u32, mode: Mode) -> f64 {
        match (self.wishes[block as usize], mode) {
            (Wish::Any, _) | (Wish::NotRecompute, Mode::Swap) => 1.0,
            (Wish::Swap, Mode::Swap) | (Wish::Recompute, Mode::Recompute) => LIKED,
            _ => DISLIKED,
        }
    }
}
