//! Every kernel's values against the reference, and every gradient against central differences
//! of the reference. The differences are in `f64`, so they are exact to about 1e-9 and a wrong or
//! missing term of a gradient cannot hide behind rounding.

use kernels::adamw::AdamW;
use kernels::attention::{self, Shape};
use kernels::{elementwise, embedding, layer_norm, linear, loss};

use crate::random::Random;
use crate::reference;

/// What an overwritten output holds before the call: reading it would spoil every result.
const POISON: f32 = f32::NAN;
/// Largest difference, as a share of the largest element: some rounding errors of `f32`.
const TOLERANCE: f64 = 4e-6;

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

fn assert_close(what: &str, found: &[f32], expect: &[f64]) {
    assert_eq!(found.len(), expect.len(), "{what}");
    let size = expect.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
    assert!(size > 1e-3, "{what}: nothing to compare, all is about 0");
    for (i, (&found, &expect)) in found.iter().zip(expect).enumerate() {
        let error = (f64::from(found) - expect).abs() / size;
        assert!(error <= TOLERANCE, "{what}[{i}]: {found} is not {expect}");
    }
}

/// The gradient at `x` of `function` weighted by `d_out`, by central differences.
fn differences(x: &[f32], d_out: &[f32], function: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    const STEP: f64 = 1e-5;
    let mut x = wide(x);
    let objective = |x: &[f64]| -> f64 {
        function(x).iter().zip(d_out).map(|(out, &weight)| out * f64::from(weight)).sum()
    };
    (0..x.len())
        .map(|i| {
            let middle = x[i];
            x[i] = middle + STEP;
            let above = objective(&x);
            x[i] = middle - STEP;
            let below = objective(&x);
            x[i] = middle;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

#[test]
fn linear_layers() {
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 5, 7), (9, 16, 33), (20, 40, 8)] {
        let mut random = Random(1);
        let x = random.vector(rows * inputs);
        let weight = random.vector(outputs * inputs);
        let bias = random.vector(outputs);
        let d_out = random.vector(rows * outputs);
        let (x_w, weight_w, bias_w) = (wide(&x), wide(&weight), wide(&bias));

        let mut out = vec![POISON; rows * outputs];
        linear::forward(&mut out, &x, &weight, Some(&bias), inputs);
        assert_close("out", &out, &reference::linear(&x_w, &weight_w, &bias_w, inputs));
        out.fill(POISON);
        linear::forward(&mut out, &x, &weight, None, inputs);
        let no_bias = vec![0.0; outputs];
        assert_close("no bias", &out, &reference::linear(&x_w, &weight_w, &no_bias, inputs));

        let mut d_x = vec![POISON; x.len()];
        linear::input_gradient(&mut d_x, &d_out, &weight, inputs);
        let expect = differences(&x, &d_out, |x| reference::linear(x, &weight_w, &bias_w, inputs));
        assert_close("d_x", &d_x, &expect);

        let mut d_weight = vec![POISON; weight.len()];
        linear::weight_gradient(&mut d_weight, &d_out, &x, inputs);
        let expect = differences(&weight, &d_out, |w| reference::linear(&x_w, w, &bias_w, inputs));
        assert_close("d_weight", &d_weight, &expect);

        let mut d_bias = vec![POISON; outputs];
        linear::bias_gradient(&mut d_bias, &d_out);
        let expect = differences(&bias, &d_out, |b| reference::linear(&x_w, &weight_w, b, inputs));
        assert_close("d_bias", &d_bias, &expect);
    }
}

#[test]
fn embeddings() {
    let (batch, seq, hidden, vocab) = (3, 4, 5, 6);
    let mut random = Random(2);
    let tokens = random.tokens(batch * seq, vocab);
    let table = random.vector(vocab as usize * hidden);
    let places = random.vector(seq * hidden);
    let d_out = random.vector(batch * seq * hidden);
    let (table_w, places_w) = (wide(&table), wide(&places));

    let mut out = vec![POISON; d_out.len()];
    embedding::forward(&mut out, &tokens, &table, &places, hidden);
    assert_close("out", &out, &reference::embedding(&tokens, &table_w, &places_w, hidden));

    let before = random.vector(table.len());
    let mut d_table = before.clone();
    embedding::token_gradient(&mut d_table, &d_out, &tokens, hidden);
    let mut expect =
        differences(&table, &d_out, |t| reference::embedding(&tokens, t, &places_w, hidden));
    expect.iter_mut().zip(&before).for_each(|(sum, &old)| *sum += f64::from(old));
    assert_close("d_table", &d_table, &expect);

    let mut d_places = vec![POISON; places.len()];
    embedding::position_gradient(&mut d_places, &d_out);
    let expect =
        differences(&places, &d_out, |p| reference::embedding(&tokens, &table_w, p, hidden));
    assert_close("d_places", &d_places, &expect);
}

#[test]
fn layer_norms() {
    for (rows, hidden) in [(1, 3), (4, 16), (3, 37)] {
        let mut random = Random(3);
        // A mean far from 0 shows a variance that forgot to subtract it.
        let x: Vec<f32> = random.vector(rows * hidden).iter().map(|v| v * 0.5 + 3.0).collect();
        let gain = random.vector(hidden);
        let shift = random.vector(hidden);
        let d_out = random.vector(x.len());
        let (x_w, gain_w, shift_w) = (wide(&x), wide(&gain), wide(&shift));

        let mut out = vec![POISON; x.len()];
        let mut stats = vec![POISON; 2 * rows];
        layer_norm::forward(&mut out, &mut stats, &x, &gain, &shift);
        assert_close("out", &out, &reference::layer_norm(&x_w, &gain_w, &shift_w));

        let mut d_x = vec![POISON; x.len()];
        layer_norm::input_gradient(&mut d_x, &d_out, &x, &stats, &gain);
        let expect = differences(&x, &d_out, |x| reference::layer_norm(x, &gain_w, &shift_w));
        assert_close("d_x", &d_x, &expect);

        let mut d_gain = vec![POISON; hidden];
        let mut d_shift = vec![POISON; hidden];
        layer_norm::parameter_gradient(&mut d_gain, &mut d_shift, &d_out, &x, &stats);
        let expect = differences(&gain, &d_out, |g| reference::layer_norm(&x_w, g, &shift_w));
        assert_close("d_gain", &d_gain, &expect);
        let expect = differences(&shift, &d_out, |s| reference::layer_norm(&x_w, &gain_w, s));
        assert_close("d_shift", &d_shift, &expect);
    }
}

#[test]
fn element_by_element() {
    let mut random = Random(4);
    let x: Vec<f32> = random.vector(200).iter().map(|v| v * 6.0).collect();
    let d_out = random.vector(x.len());
    let mut out = vec![POISON; x.len()];
    elementwise::gelu(&mut out, &x);
    assert_close("gelu", &out, &reference::gelu(&wide(&x)));
    let mut d_x = vec![POISON; x.len()];
    elementwise::gelu_gradient(&mut d_x, &d_out, &x);
    assert_close("d_gelu", &d_x, &differences(&x, &d_out, reference::gelu));

    let mut sum = vec![POISON; x.len()];
    elementwise::add(&mut sum, &x, &d_out);
    let expect: Vec<f64> = wide(&x).iter().zip(wide(&d_out)).map(|(a, b)| a + b).collect();
    assert_close("add", &sum, &expect);
    let mut scaled = x.clone();
    elementwise::add_scaled(&mut scaled, &d_out, -0.5);
    let expect: Vec<f64> = wide(&x).iter().zip(wide(&d_out)).map(|(a, b)| a - 0.5 * b).collect();
    assert_close("add_scaled", &scaled, &expect);
}

#[test]
fn gelu_is_finite_far_out() {
    let x = [-1e4, -100.0, 0.0, 100.0, 1e4];
    let mut out = [POISON; 5];
    elementwise::gelu(&mut out, &x);
    assert!(out[0].abs() < 1e-30 && out[1].abs() < 1e-30, "{out:?}");
    assert_eq!(out[2..], [0.0, 100.0, 1e4]);
    let mut d_x = [POISON; 5];
    elementwise::gelu_gradient(&mut d_x, &[1.0; 5], &x);
    assert!(d_x[0].abs() < 1e-20 && d_x[1].abs() < 1e-20, "{d_x:?}");
    assert_eq!(d_x[2..], [0.5, 1.0, 1.0]);
}

#[test]
fn attention_layers() {
    let shapes = [
        Shape { batch: 1, seq: 1, heads: 1, head_size: 1 },
        Shape { batch: 2, seq: 5, heads: 3, head_size: 4 },
        Shape { batch: 1, seq: 19, heads: 2, head_size: 3 },
    ];
    for shape in shapes {
        let mut random = Random(5);
        let qkv = random.vector(3 * shape.output_elements());
        let qkv_w = wide(&qkv);
        let d_out = random.vector(shape.output_elements());
        let mut probabilities = vec![POISON; shape.probability_elements()];
        attention::probabilities(&mut probabilities, &qkv, shape);
        let expect = reference::probabilities(&qkv_w, shape);
        assert_close("probabilities", &probabilities, &expect);

        let mut out = vec![POISON; shape.output_elements()];
        attention::apply(&mut out, &probabilities, &qkv, shape);
        assert_close("out", &out, &reference::apply(&expect, &qkv_w, shape));

        let mut d_scores = vec![POISON; probabilities.len()];
        attention::score_gradient(&mut d_scores, &d_out, &probabilities, &qkv, shape);
        let mut d_qkv = vec![POISON; qkv.len()];
        attention::qkv_gradient(&mut d_qkv, &d_scores, &d_out, &probabilities, &qkv, shape);
        let expect = differences(&qkv, &d_out, |qkv| {
            reference::apply(&reference::probabilities(qkv, shape), qkv, shape)
        });
        assert_close("d_qkv", &d_qkv, &expect);
    }
}

#[test]
fn cross_entropies() {
    let (rows, vocab) = (7, 29);
    let mut random = Random(6);
    let logits: Vec<f32> = random.vector(rows * vocab).iter().map(|v| v * 5.0).collect();
    let targets = random.tokens(rows, vocab as u32);
    let found = loss::cross_entropy(&logits, &targets, vocab);
    let expect = reference::cross_entropy(&wide(&logits), &targets, vocab);
    assert_close("loss", &[found], &[expect]);

    let mut d_logits = vec![POISON; logits.len()];
    loss::cross_entropy_gradient(&mut d_logits, &logits, &targets, vocab);
    let expect =
        differences(&logits, &[1.0], |x| vec![reference::cross_entropy(x, &targets, vocab)]);
    assert_close("d_logits", &d_logits, &expect);
}

#[test]
fn cross_entropy_of_huge_logits_is_finite() {
    let logits = [3e38, -3e38, 0.0];
    assert_eq!(loss::cross_entropy(&logits, &[0], 3), 0.0);
    let mut d_logits = [POISON; 3];
    loss::cross_entropy_gradient(&mut d_logits, &logits, &[1], 3);
    assert_eq!(d_logits[..2], [1.0, -1.0]);
}

#[test]
fn adamw_follows_its_definition() {
    let rule =
        AdamW { learning_rate: 0.01, beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let mut random = Random(7);
    let mut value = random.vector(50);
    let mut first = vec![0.0; 50];
    let mut second = vec![0.0; 50];
    let (mut value_w, mut first_w, mut second_w) = (wide(&value), vec![0.0; 50], vec![0.0; 50]);
    for step in 1..=40_i32 {
        let gradient = random.vector(50);
        rule.update(&mut value, &mut first, &mut second, &gradient, step as u64);
        for (i, gradient) in wide(&gradient).into_iter().enumerate() {
            value_w[i] -= 0.01 * 0.1 * value_w[i];
            first_w[i] = 0.9 * first_w[i] + 0.1 * gradient;
            second_w[i] = 0.95 * second_w[i] + 0.05 * gradient * gradient;
            let corrected_first: f64 = first_w[i] / (1.0 - 0.9_f64.powi(step));
            let corrected_second: f64 = second_w[i] / (1.0 - 0.95_f64.powi(step));
            value_w[i] -= 0.01 * corrected_first / (corrected_second.sqrt() + 1e-8);
        }
        assert_close("value", &value, &value_w);
        assert_close("first moment", &first, &first_w);
        assert_close("second moment", &second, &second_w);
    }
}
