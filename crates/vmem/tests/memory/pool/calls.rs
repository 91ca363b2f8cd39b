//! Random calls to the pool.

use proptest::prelude::*;

/// What is asked for.
pub(super) const SIZES: [u64; 7] = [1, 700, 5000, 8192, 12_000, 20_000, 32_768];

#[derive(Clone, Debug)]
pub(in super::super) enum Call {
    /// A size on a stream; with addresses of its own however small.
    Allocate(usize, usize, bool),
    Free(prop::sample::Index),
    /// A use on a stream, ordered by its owner.
    Use(prop::sample::Index, usize, bool),
    /// Copied out and given away.
    Detach(prop::sample::Index),
    /// Taken back if the chunk is still there, else copied in.
    Return(prop::sample::Index),
    Poll,
    EndStep,
    Trim,
    /// Another layout: so many granules long lots at so many. None: blocks lie where they do.
    LayOut(Vec<(u64, u64)>),
}

fn call() -> impl Strategy<Value = Call> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        8 => (0..SIZES.len(), 0usize..2, prop::bool::weighted(0.3))
            .prop_map(|(size, on, own)| Call::Allocate(size, on, own)),
        4 => at().prop_map(Call::Free),
        8 => (at(), 0usize..2, any::<bool>()).prop_map(|(at, on, w)| Call::Use(at, on, w)),
        4 => at().prop_map(Call::Detach),
        5 => at().prop_map(Call::Return),
        3 => Just(Call::Poll),
        2 => Just(Call::EndStep),
        1 => Just(Call::Trim),
    ]
}

pub(in super::super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec(call(), 1..150)
}

/// As [`calls`], under layouts of any lots: they overlap, are of wrong sizes, and change.
pub(in super::super) fn planned_calls() -> impl Strategy<Value = Vec<Call>> {
    let units =
        prop_oneof![1 => Just(1u64), 3 => Just(2), 2 => Just(3), 1 => Just(5), 1 => Just(8)];
    let lots = prop::collection::vec((0u64..32, units), 0..16);
    let layout = lots.prop_map(Call::LayOut).boxed();
    let calls = prop::collection::vec(prop_oneof![1 => layout.clone(), 40 => call()], 1..150);
    (layout, calls).prop_map(|(layout, mut calls)| {
        calls.insert(0, layout);
        calls
    })
}
