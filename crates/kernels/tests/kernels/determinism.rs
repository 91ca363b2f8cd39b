//! Same input, same bits: at any address, after any other work, on any thread, over any garbage.

use kernels::attention::{self, Shape};
use kernels::matmul::{Matrix, MatrixMut, Onto, matmul};
use kernels::{elementwise, layer_norm, loss};

use crate::random::Random;

/// Copies of a slice that start at different offsets, in elements, from the allocation's start.
struct Shifted {
    storage: Vec<f32>,
    start: usize,
    count: usize,
}

impl Shifted {
    fn new(values: &[f32], shift: usize) -> Shifted {
        let mut storage = vec![f32::NAN; values.len() + 64];
        // Cache-line aligned first, so that `shift` means the same in every run.
        let start = storage.as_ptr().align_offset(64) + shift;
        storage[start..start + values.len()].copy_from_slice(values);
        Shifted { storage, start, count: values.len() }
    }

    fn get(&self) -> &[f32] {
        &self.storage[self.start..self.start + self.count]
    }

    fn get_mut(&mut self) -> &mut [f32] {
        &mut self.storage[self.start..self.start + self.count]
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Rows, inner size and columns: vectors, small squares, odd sizes, and ones above all of the
/// product's block sizes.
const SIZES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 300, 1),
    (1, 64, 96),
    (96, 64, 1),
    (5, 2, 7),
    (16, 32, 16),
    (17, 33, 65),
    (64, 64, 64),
    (128, 32, 128),
    (100, 700, 90),
    (256, 128, 384),
    (7, 2050, 513),
];

fn product(
    size: (usize, usize, usize),
    layout: u32,
    shifts: [usize; 3],
    onto: Onto,
    garbage: f32,
) -> Vec<u32> {
    let (rows, inner, columns) = size;
    let mut random = Random(11);
    let left = Shifted::new(&random.vector(rows * inner), shifts[0]);
    let right = Shifted::new(&random.vector(inner * columns), shifts[1]);
    let start = match onto {
        Onto::Overwrite => vec![garbage; rows * columns],
        Onto::Accumulate => random.vector(rows * columns),
    };
    let mut target = Shifted::new(&start, shifts[2]);
    let left = match layout & 1 {
        0 => Matrix::new(left.get(), inner),
        _ => Matrix::new(left.get(), rows).transposed(),
    };
    let right = match layout & 2 {
        0 => Matrix::new(right.get(), columns),
        _ => Matrix::new(right.get(), inner).transposed(),
    };
    matmul(MatrixMut::new(target.get_mut(), columns), left, right, 0.7, onto);
    bits(target.get())
}

#[test]
fn products_do_not_depend_on_addresses_or_garbage() {
    let mut compared = 0;
    for size in SIZES {
        for layout in 0..4 {
            for onto in [Onto::Overwrite, Onto::Accumulate] {
                let expect = product(size, layout, [0, 0, 0], onto, 0.0);
                assert!(expect.iter().all(|&v| f32::from_bits(v).is_finite()));
                for shift in 1..16 {
                    let shifts = [shift, (shift * 7) % 16, (shift * 3 + 1) % 16];
                    for shifts in [shifts, [shift, 0, 0], [0, shift, 0], [0, 0, shift]] {
                        let found = product(size, layout, shifts, onto, f32::NAN);
                        assert!(found == expect, "{size:?} {layout} {onto:?} {shifts:?}");
                        compared += 1;
                    }
                }
            }
        }
    }
    assert_eq!(compared, 12 * 4 * 2 * 60);
}

#[test]
fn products_do_not_depend_on_history_or_threads() {
    let run = |order: &[usize]| -> Vec<(usize, Vec<u32>)> {
        let one = |&i: &usize| (i, product(SIZES[i], 2, [0, 0, 0], Onto::Overwrite, 0.0));
        let mut results: Vec<_> = order.iter().map(one).collect();
        results.sort_by_key(|&(i, _)| i);
        results
    };
    let forward: Vec<usize> = (0..SIZES.len()).collect();
    let backward: Vec<usize> = (0..SIZES.len()).rev().collect();
    let expect = run(&forward);
    assert!(run(&backward) == expect);
    let elsewhere = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| scope.spawn(move || run(if i % 2 == 0 { &[3, 8, 1] } else { &[8] })))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect::<Vec<_>>()
    });
    for results in elsewhere {
        for (i, result) in results {
            assert!(result == expect[i].1, "{i}");
        }
    }
}

/// Runs `kernel` on shifted copies of the inputs and a shifted output, and compares bits.
fn assert_same_bits(
    what: &str,
    inputs: &[&[f32]],
    output: usize,
    kernel: impl Fn(&mut [f32], &[&[f32]]),
) {
    let run = |shift: usize, garbage: f32| {
        let copies: Vec<Shifted> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| Shifted::new(x, (shift * (i + 1)) % 16))
            .collect();
        let mut out = Shifted::new(&vec![garbage; output], (shift * 5) % 16);
        let slices: Vec<&[f32]> = copies.iter().map(Shifted::get).collect();
        kernel(out.get_mut(), &slices);
        bits(out.get())
    };
    let expect = run(0, 0.0);
    for shift in 1..16 {
        assert!(run(shift, f32::NAN) == expect, "{what} at a shift of {shift}");
    }
}

#[test]
fn other_kernels_do_not_depend_on_addresses_or_garbage() {
    let mut random = Random(12);
    let shape = Shape { batch: 2, seq: 33, heads: 3, head_size: 8 };
    let (rows, hidden) = (shape.batch * shape.seq, shape.hidden());
    let qkv = random.vector(3 * shape.output_elements());
    let mut square = vec![0.0; shape.probability_elements()];
    attention::probabilities(&mut square, &qkv, shape);
    let x = random.vector(rows * hidden);
    let d_out = random.vector(rows * hidden);
    let gain = random.vector(hidden);
    let stats = random.vector(2 * rows);
    let targets = random.tokens(rows, hidden as u32);

    assert_same_bits("probabilities", &[&qkv], square.len(), |out, i| {
        attention::probabilities(out, i[0], shape);
    });
    assert_same_bits("apply", &[&square, &qkv], x.len(), |out, i| {
        attention::apply(out, i[0], i[1], shape);
    });
    assert_same_bits("score_gradient", &[&d_out, &square, &qkv], square.len(), |out, i| {
        attention::score_gradient(out, i[0], i[1], i[2], shape);
    });
    assert_same_bits("qkv_gradient", &[&square, &d_out, &square, &qkv], qkv.len(), |out, i| {
        attention::qkv_gradient(out, i[0], i[1], i[2], i[3], shape);
    });
    assert_same_bits("layer_norm", &[&x, &gain, &gain], x.len(), |out, i| {
        layer_norm::forward(out, &mut vec![0.0; 2 * rows], i[0], i[1], i[2]);
    });
    assert_same_bits("norm gradient", &[&d_out, &x, &stats, &gain], x.len(), |out, i| {
        layer_norm::input_gradient(out, i[0], i[1], i[2], i[3]);
    });
    assert_same_bits("gelu", &[&x], x.len(), |out, i| elementwise::gelu(out, i[0]));
    assert_same_bits("gelu gradient", &[&d_out, &x], x.len(), |out, i| {
        elementwise::gelu_gradient(out, i[0], i[1]);
    });
    assert_same_bits("loss gradient", &[&x], x.len(), |out, i| {
        loss::cross_entropy_gradient(out, i[0], &targets, hidden);
    });
}
