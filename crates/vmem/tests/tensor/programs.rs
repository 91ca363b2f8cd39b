//! Random programs on tensors in every place, of every type, through every kind of view, against
//! the model: bit for bit the same, whatever the place. What is modelled: states of an optimizer
//! that are made, sliced, moved, overwritten by a checkpoint and converted.

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::{Dtype, Place, Scalar, SwapTensor, TensorError};

use super::bench::Bench;
use super::model::{self, Model};

mod ops;

use ops::{Form, Make, Op, View, ops, values};

#[derive(Default, Debug)]
struct Tally {
    /// By source, target, whether each is contiguous, and whether the types are the same.
    copies: BTreeMap<(Place, Place, bool, bool, bool), u64>,
    fills: BTreeMap<(Place, bool), u64>,
    views: BTreeMap<(Place, &'static str), u64>,
    counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
}

struct Pair {
    real: SwapTensor,
    model: Model,
}

struct Run<'a> {
    bench: Bench,
    live: Vec<Pair>,
    tally: &'a mut Tally,
}

type Outcome = Result<(), TestCaseError>;

fn fail<T>(error: TensorError) -> Result<T, TestCaseError> {
    Err(TestCaseError::fail(error.to_string()))
}

impl Run<'_> {
    fn new_pair(
        &self,
        place: Place,
        dtype: Dtype,
        shape: &[usize],
        seed: u64,
    ) -> Result<Pair, TestCaseError> {
        let model = Model::new(shape, dtype, &values(shape.iter().product(), seed));
        let bytes = model.bytes();
        let device = &self.bench.device;
        let real = match dtype {
            // Through a file's way in: bytes that are not a Rust type's.
            Dtype::Bool => {
                let values: Vec<bool> = bytes.iter().map(|&byte| byte != 0).collect();
                device.from_slice(place, shape, &values)
            }
            _ => {
                let real = device.empty_in(place, shape, dtype).or_else(fail)?;
                let host = from_bytes(device, shape, dtype, &bytes).or_else(fail)?;
                real.copy_(&host).or_else(fail)?;
                Ok(real)
            }
        }
        .or_else(fail)?;
        prop_assert_eq!(real.place(), place);
        Ok(Pair { real, model })
    }

    fn step(&mut self, op: &Op) -> Outcome {
        if let Op::New(place, dtype, shape, seed) = op {
            let pair = self.new_pair(*place, *dtype, shape, *seed)?;
            self.live.push(pair);
            return self.check(self.live.len() - 1);
        }
        if self.live.is_empty() {
            return Ok(());
        }
        let count = self.live.len();
        match op {
            Op::New(..) => unreachable!("handled above"),
            Op::View(of, view) => self.view(of.index(count), view),
            Op::Copy(to, from) => self.copy(to.index(count), from.index(count)),
            Op::CopyLike(to, place, dtype, form, seed) => {
                let mut to = to.index(count);
                let own = seed >> 63 == 1;
                if seed >> 62 & 1 == 1 {
                    to = self.every_second(to)?;
                }
                let dtype = if own { self.live[to].model.dtype } else { *dtype };
                let source = self.source_like(to, *place, dtype, *form, *seed)?;
                self.live.push(source);
                self.copy(to, self.live.len() - 1)
            }
            Op::Shift(of) => self.shift(of.index(count)),
            Op::Fill(of, value) => self.fill(of.index(count), *value),
            Op::SwapOut(of) => self.swap(of.index(count), true),
            Op::SwapIn(of) => self.swap(of.index(count), false),
            Op::Make(of, make) => self.make(of.index(count), *make),
            Op::Drop(of) => {
                self.live.swap_remove(of.index(count));
                Ok(())
            }
            Op::Trim => self.bench.device.trim().or_else(fail),
        }
    }

    /// A view with gaps, if there are elements enough.
    fn every_second(&mut self, of: usize) -> Result<usize, TestCaseError> {
        let Pair { real, model } = &self.live[of];
        let Some(dim) = model.shape.iter().rposition(|&size| size > 2) else { return Ok(of) };
        let size = model.shape[dim];
        let real = real.slice(dim, 0, size, 2).or_else(fail)?;
        let model = model.slice(dim, 0, size, 2);
        self.live.push(Pair { real, model });
        Ok(self.live.len() - 1)
    }

    /// A tensor of the shape of another, with its elements in some other order in memory.
    fn source_like(
        &self,
        of: usize,
        place: Place,
        dtype: Dtype,
        form: Form,
        seed: u64,
    ) -> Result<Pair, TestCaseError> {
        let shape = self.live[of].model.shape.clone();
        let rank = shape.len();
        Ok(match form {
            Form::Transposed => {
                let reversed: Vec<usize> = shape.iter().rev().copied().collect();
                let dims: Vec<usize> = (0..rank).rev().collect();
                let Pair { real, model } = self.new_pair(place, dtype, &reversed, seed)?;
                Pair { real: real.permute(&dims).or_else(fail)?, model: model.permute(&dims) }
            }
            Form::Stepped if rank > 0 => {
                let mut wider = shape;
                let last = wider.last_mut().expect("there is one");
                let size = *last;
                *last = 2 * size + 1;
                let Pair { real, model } = self.new_pair(place, dtype, &wider, seed)?;
                let (start, end) = (1, 2 * size + 1);
                Pair {
                    real: real.slice(rank - 1, start, end, 2).or_else(fail)?,
                    model: model.slice(rank - 1, start, end, 2),
                }
            }
            Form::Repeated if rank > 0 => self.new_pair(place, dtype, &shape[1..], seed)?,
            _ => self.new_pair(place, dtype, &shape, seed)?,
        })
    }

    fn view(&mut self, of: usize, view: &View) -> Outcome {
        let Pair { real, model } = &self.live[of];
        let rank = model.shape.len();
        let (name, made, expected) = match view {
            View::Slice(dim, a, b, step) if rank > 0 => {
                let dim = dim.index(rank);
                let (a, b) = (a.index(model.shape[dim] + 1), b.index(model.shape[dim] + 1));
                let (start, end) = (a.min(b), a.max(b));
                let expected = model.slice(dim, start, end, *step);
                ("slice", real.slice(dim, start, end, *step), expected)
            }
            View::Select(dim, at) if rank > 0 && !model.shape.contains(&0) => {
                let dim = dim.index(rank);
                let at = at.index(model.shape[dim]);
                ("select", real.select(dim, at), model.select(dim, at))
            }
            View::Permute(seed) => {
                let mut dims: Vec<usize> = (0..rank).collect();
                (1..rank).for_each(|i| dims.swap(i, *seed as usize % (i + 1)));
                ("permute", real.permute(&dims), model.permute(&dims))
            }
            View::Unsqueeze(dim) => {
                let dim = dim.index(rank + 1);
                ("unsqueeze", real.unsqueeze(dim), model.unsqueeze(dim))
            }
            View::Expand(times) => {
                let mut shape = model.shape.clone();
                shape.insert(0, *times);
                let expected = model.expand(&shape).expect("a dimension more");
                ("expand", real.expand(&shape), expected)
            }
            View::Reshape(flat) => {
                let shape = other_shape(&model.shape, *flat);
                let expected = model.reshaped(&shape);
                let made = real.view(&shape);
                if !expected.has_strides() {
                    prop_assert!(matches!(made, Err(TensorError::NotViewable { .. })), "{made:?}");
                    self.tally.count("not viewable");
                    return Ok(());
                }
                ("view", made, expected)
            }
            _ => ("detach", Ok(real.detach()), model.clone()),
        };
        let made = made.or_else(fail)?;
        prop_assert!(made.shares_storage(real), "{name} is a view");
        *self.tally.views.entry((real.place(), name)).or_default() += 1;
        self.live.push(Pair { real: made, model: expected });
        self.check(self.live.len() - 1)
    }

    fn copy(&mut self, to: usize, from: usize) -> Outcome {
        let (target, source) = (&self.live[to], &self.live[from]);
        let result = target.real.copy_(&source.real).map(|_| ());
        if source.model.expand(&target.model.shape).is_none() {
            prop_assert!(matches!(result, Err(TensorError::ShapeMismatch { .. })), "{result:?}");
            self.tally.count("mismatch");
        } else if target.model.repeats() {
            prop_assert!(matches!(result, Err(TensorError::RepeatedElements { .. })), "{result:?}");
            self.tally.count("repeated");
        } else {
            result.or_else(fail)?;
            let key = (
                source.real.place(),
                target.real.place(),
                source.model.is_contiguous(),
                target.model.is_contiguous(),
                source.model.dtype == target.model.dtype,
            );
            *self.tally.copies.entry(key).or_default() += 1;
            target.model.copy_(&source.model);
        }
        self.check(to)
    }

    fn shift(&mut self, of: usize) -> Outcome {
        let Pair { real, model } = &self.live[of];
        let Some(dim) = model.shape.iter().position(|&size| size > 1) else { return Ok(()) };
        if model.repeats() || model.at.is_empty() {
            return Ok(());
        }
        let size = model.shape[dim];
        let low = real.narrow(dim, 0, size - 1).or_else(fail)?;
        let high = real.narrow(dim, 1, size - 1).or_else(fail)?;
        high.copy_(&low).or_else(fail)?;
        model.slice(dim, 1, size, 1).copy_(&model.slice(dim, 0, size - 1, 1));
        self.tally.count("overlapping");
        self.check(of)
    }

    fn fill(&mut self, of: usize, value: f64) -> Outcome {
        let Pair { real, model } = &self.live[of];
        let result = real.fill_(value).map(|_| ());
        if model.repeats() {
            prop_assert!(matches!(result, Err(TensorError::RepeatedElements { .. })), "{result:?}");
            return Ok(());
        }
        result.or_else(fail)?;
        model.fill_(Scalar::Float(value));
        *self.tally.fills.entry((real.place(), model.is_contiguous())).or_default() += 1;
        self.check(of)
    }

    fn swap(&mut self, of: usize, out: bool) -> Outcome {
        let real = &self.live[of].real;
        let (before, address) = (real.place(), real.address());
        let moved = if out { real.swap_out() } else { real.swap_in() }.or_else(fail)?;
        let after = real.place();
        prop_assert_eq!(moved, after == if out { Place::Away } else { Place::Device });
        match (before, after) {
            (Place::Device, Place::Away) => {
                prop_assert_eq!(real.address(), None);
                real.swap_in().or_else(fail)?;
                prop_assert_eq!(real.address(), address, "the address stays");
                real.swap_out().or_else(fail)?;
                self.tally.count("swapped out");
            }
            (Place::Away, Place::Device) => self.tally.count("swapped in"),
            _ => prop_assert_eq!(before, after),
        }
        self.check(of)
    }

    fn make(&mut self, of: usize, make: Make) -> Outcome {
        let Pair { real, model } = &self.live[of];
        let place = real.place();
        let (made, expected, expected_place, is_same) = match make {
            Make::Clone => (real.try_clone(), model.copied(model.dtype), place, false),
            Make::Contiguous => {
                let same = real.is_contiguous();
                prop_assert!(!same || model.is_contiguous());
                (real.contiguous(), model.copied(model.dtype), place, same)
            }
            Make::To(to) => (real.to(to), model.copied(model.dtype), to, to == place),
            Make::ToDtype(dtype) => {
                (real.to_dtype(dtype), model.copied(dtype), place, dtype == model.dtype)
            }
            Make::Reshape => {
                let shape = other_shape(&model.shape, true);
                let expected = model.reshaped(&shape);
                let same = expected.has_strides();
                (real.reshape(&shape), expected.copied(model.dtype), place, same)
            }
        };
        let made = made.or_else(fail)?;
        prop_assert_eq!(made.place(), expected_place);
        prop_assert_eq!(made.shares_storage(real), is_same, "{:?}", make);
        if !is_same {
            prop_assert!(made.is_contiguous());
        }
        let expected = if is_same { model.reshaped(&expected.shape) } else { expected };
        self.live.push(Pair { real: made, model: expected });
        self.tally.count("made");
        self.check(self.live.len() - 1)
    }

    fn check(&self, of: usize) -> Outcome {
        let Pair { real, model } = &self.live[of];
        prop_assert_eq!(real.shape(), &model.shape[..]);
        prop_assert_eq!(real.dtype(), model.dtype);
        prop_assert_eq!(real.to_bytes().or_else(fail)?, model.bytes());
        prop_assert_eq!(real.is_swap_tensor(), real.place() == Place::Swapped);
        prop_assert_eq!(
            self.bench.check.violation_count(),
            0,
            "{:?}",
            self.bench.check.violations()
        );
        Ok(())
    }
}

/// All elements in one row, or the first two dimensions together.
fn other_shape(shape: &[usize], flat: bool) -> Vec<usize> {
    match shape {
        [first, second, rest @ ..] if !flat => [&[first * second], rest].concat(),
        _ => vec![shape.iter().product()],
    }
}

fn from_bytes(
    device: &vmem::TensorDevice,
    shape: &[usize],
    dtype: Dtype,
    bytes: &[u8],
) -> Result<SwapTensor, TensorError> {
    macro_rules! typed {
        ($type:ty) => {{
            let elements = bytes.chunks_exact(size_of::<$type>());
            let values: Vec<$type> =
                elements.map(|it| <$type>::from_le_bytes(it.try_into().unwrap())).collect();
            device.from_slice(Place::Host, shape, &values)
        }};
    }
    match dtype {
        Dtype::F64 => typed!(f64),
        Dtype::F32 => typed!(f32),
        Dtype::F16 => typed!(half::f16),
        Dtype::BF16 => typed!(half::bf16),
        Dtype::I64 => typed!(i64),
        Dtype::I32 => typed!(i32),
        Dtype::I16 => typed!(i16),
        Dtype::I8 => typed!(i8),
        Dtype::U8 => typed!(u8),
        Dtype::Bool => unreachable!("made of truth values"),
    }
}

fn run(bench: Bench, stage_bytes: usize, ops: &[Op], tally: &mut Tally) -> Outcome {
    bench.device.set_stage_bytes(stage_bytes);
    let mut run = Run { bench, live: Vec::new(), tally };
    for op in ops {
        run.step(op)?;
    }
    (0..run.live.len()).try_for_each(|of| run.check(of))?;
    let Run { bench, live, .. } = run;
    drop(live);
    let Bench { host, check, device, .. } = bench;
    drop(device);
    prop_assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    prop_assert_eq!(check.violation_count(), 0);
    Ok(())
}

#[test]
fn every_place_gives_what_the_model_gives() {
    let config = Runs { cases: 1500, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tally = RefCell::new(Tally::default());
    let stages = prop::sample::select(vec![4096usize, 16 << 10, 4 << 20]);
    let result = runner.run(&(any::<u64>(), stages, ops()), |(seed, stage_bytes, ops)| {
        let bench = Bench::new(seed, 16 << 20, 16 << 20);
        run(bench, stage_bytes, &ops, &mut tally.borrow_mut())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let tally = tally.into_inner();
    let copies: u64 = tally.copies.values().sum();
    println!("{copies} copies, {:?}, {:?}", tally.counts, tally.fills);
    for from in Place::ALL {
        for to in Place::ALL {
            for kind in 0..8 {
                let key = (from, to, kind & 1 > 0, kind & 2 > 0, kind & 4 > 0);
                let count = tally.copies.get(&key).copied().unwrap_or(0);
                assert!(count > 5, "{key:?}: {count}");
            }
        }
        for contiguous in [false, true] {
            let count = tally.fills.get(&(from, contiguous)).copied().unwrap_or(0);
            assert!(count > 20, "filled {from:?} {contiguous}: {count}");
        }
        for view in ["slice", "select", "permute", "unsqueeze", "expand", "view", "detach"] {
            let count = tally.views.get(&(from, view)).copied().unwrap_or(0);
            assert!(count > 50, "{view} of {from:?}: {count}");
        }
    }
    for what in
        ["mismatch", "repeated", "overlapping", "swapped out", "swapped in", "made", "not viewable"]
    {
        let count = tally.counts.get(what).copied().unwrap_or(0);
        assert!(count > 20, "{what}: {count}");
    }
}

#[test]
fn the_model_writes_what_it_reads() {
    for dtype in Dtype::ALL {
        for value in [0, 1] {
            let bytes = model::write(Scalar::Int(value), dtype);
            assert_eq!(bytes.len(), dtype.size_bytes());
            assert_eq!(model::write(model::read(&bytes, dtype), dtype), bytes);
        }
    }
}

#[cfg(feature = "planted")]
mod planted {
    use proptest::strategy::ValueTree;

    use super::*;

    #[test]
    fn a_host_that_does_not_wait_for_copies_is_noticed() {
        let rng = TestRng::deterministic_rng(Runs::default().rng_algorithm);
        let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
        let noticed = (0..100).any(|_| {
            let (seed, ops) =
                (any::<u64>(), ops()).new_tree(&mut runner).expect("a case").current();
            let settings = vmem::devices::HostConfig::lockstep(16 << 20, seed);
            let plant = |memory: &mut vmem::DeviceMemory| {
                memory.streams.plant(Some(vmem::Site::HostAfterUse));
            };
            let bench = Bench::prepared(settings, 16 << 20, plant);
            run(bench, 4096, &ops, &mut Tally::default()).is_err()
        });
        assert!(noticed);
    }
}
