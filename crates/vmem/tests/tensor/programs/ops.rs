//! Random operations on tensors, and the values that these begin with.

use proptest::prelude::*;
use proptest::sample::Index;
use vmem::{Dtype, Place, Scalar};

#[derive(Clone, Debug)]
pub(super) enum Op {
    New(Place, Dtype, Vec<usize>, u64),
    View(Index, View),
    /// Any two, which may not fit.
    Copy(Index, Index),
    /// From a fresh tensor that fits.
    CopyLike(Index, Place, Dtype, Form, u64),
    /// Over a part of itself.
    Shift(Index),
    Fill(Index, f64),
    SwapOut(Index),
    SwapIn(Index),
    Make(Index, Make),
    Drop(Index),
    Trim,
}

#[derive(Clone, Debug)]
pub(super) enum View {
    Slice(Index, Index, Index, usize),
    Select(Index, Index),
    Permute(u64),
    Unsqueeze(Index),
    Expand(usize),
    /// As one row, or with the first two dimensions together.
    Reshape(bool),
    Detach,
}

/// How the elements of a source lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Rows,
    Transposed,
    Stepped,
    Repeated,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Make {
    Clone,
    Contiguous,
    To(Place),
    ToDtype(Dtype),
    Reshape,
}

fn places() -> impl Strategy<Value = Place> {
    prop::sample::select(Place::ALL.to_vec())
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop::sample::select(vec![1, 2, 3, 4, 7, 12, 20]);
    prop_oneof![
        8 => prop::collection::vec(size, 0..4),
        4 => Just(vec![40, 60]),
        1 => Just(vec![3, 0, 2]),
    ]
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = any::<Index>;
    let view = prop_oneof![
        4 => (at(), at(), at(), 1usize..4).prop_map(|(d, a, b, s)| View::Slice(d, a, b, s)),
        2 => (at(), at()).prop_map(|(d, i)| View::Select(d, i)),
        4 => any::<u64>().prop_map(View::Permute),
        1 => at().prop_map(View::Unsqueeze),
        1 => (1usize..4).prop_map(View::Expand),
        2 => any::<bool>().prop_map(View::Reshape),
        1 => Just(View::Detach),
    ];
    let form =
        prop::sample::select(vec![Form::Rows, Form::Transposed, Form::Stepped, Form::Repeated]);
    let make = prop_oneof![
        Just(Make::Clone),
        Just(Make::Contiguous),
        places().prop_map(Make::To),
        dtypes().prop_map(Make::ToDtype),
        Just(Make::Reshape),
    ];
    let op = prop_oneof![
        6 => (places(), dtypes(), shapes(), any::<u64>())
            .prop_map(|(place, dtype, shape, seed)| Op::New(place, dtype, shape, seed)),
        9 => (at(), view).prop_map(|(of, view)| Op::View(of, view)),
        4 => (at(), at()).prop_map(|(to, from)| Op::Copy(to, from)),
        9 => (at(), places(), prop::option::of(dtypes()), form, any::<u64>()).prop_map(
            |(to, place, dtype, form, seed)| match dtype {
                Some(dtype) => Op::CopyLike(to, place, dtype, form, seed & !(1 << 63)),
                // Of the target's own type.
                None => Op::CopyLike(to, place, Dtype::Bool, form, seed | 1 << 63),
            },
        ),
        2 => at().prop_map(Op::Shift),
        3 => (at(), prop::sample::select(vec![0.0, 1.0, -1.0, 2.5, 300.0]))
            .prop_map(|(of, value)| Op::Fill(of, value)),
        4 => at().prop_map(Op::SwapOut),
        4 => at().prop_map(Op::SwapIn),
        5 => (at(), make).prop_map(|(of, make)| Op::Make(of, make)),
        5 => at().prop_map(Op::Drop),
        1 => Just(Op::Trim),
    ];
    prop::collection::vec(op, 1..60)
}

/// Values that every type has, and some that it does not.
pub(super) fn values(count: usize, seed: u64) -> Vec<Scalar> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        state >> 33
    };
    (0..count)
        .map(|_| match next() % 8 {
            0 => Scalar::Int(next() as i64 * 4_000_000_007 - (1 << 60)),
            1 => Scalar::Float(f64::from(next() as i32) / 1000.0),
            2 => Scalar::Float([0.0, -0.0, f64::INFINITY, 1e300, -70_000.5][next() as usize % 5]),
            _ => Scalar::Int(next() as i64 % 200 - 100),
        })
        .collect()
}
