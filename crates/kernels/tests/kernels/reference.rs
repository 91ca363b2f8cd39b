//! Forward functions written as plainly as possible, in `f64`, straight from their definitions.

use kernels::attention::Shape;

pub(crate) fn linear(x: &[f64], weight: &[f64], bias: &[f64], inputs: usize) -> Vec<f64> {
    let outputs = weight.len() / inputs;
    let mut out = Vec::new();
    for row in x.chunks(inputs) {
        for o in 0..outputs {
            let products = (0..inputs).map(|i| row[i] * weight[o * inputs + i]);
            out.push(bias[o] + products.sum::<f64>());
        }
    }
    out
}

pub(crate) fn embedding(tokens: &[u32], table: &[f64], places: &[f64], hidden: usize) -> Vec<f64> {
    let seq = places.len() / hidden;
    let mut out = Vec::new();
    for (i, &token) in tokens.iter().enumerate() {
        for c in 0..hidden {
            out.push(table[token as usize * hidden + c] + places[(i % seq) * hidden + c]);
        }
    }
    out
}

pub(crate) fn layer_norm(x: &[f64], gain: &[f64], shift: &[f64]) -> Vec<f64> {
    let hidden = gain.len();
    let mut out = Vec::new();
    for row in x.chunks(hidden) {
        let mean = row.iter().sum::<f64>() / hidden as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / hidden as f64;
        for c in 0..hidden {
            out.push((row[c] - mean) / (variance + 1e-5).sqrt() * gain[c] + shift[c]);
        }
    }
    out
}

pub(crate) fn gelu(x: &[f64]) -> Vec<f64> {
    let factor = (2.0 / std::f64::consts::PI).sqrt();
    x.iter().map(|&v| 0.5 * v * (1.0 + (factor * (v + 0.044_715 * v.powi(3))).tanh())).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
    row.iter().map(|v| (v - top).exp() / sum).collect()
}

fn qkv_at(shape: Shape, b: usize, t: usize, third: usize, h: usize, d: usize) -> usize {
    let hidden = shape.hidden();
    (b * shape.seq + t) * 3 * hidden + third * hidden + h * shape.head_size + d
}

pub(crate) fn probabilities(qkv: &[f64], shape: Shape) -> Vec<f64> {
    let mut out = Vec::new();
    for b in 0..shape.batch {
        for h in 0..shape.heads {
            for t in 0..shape.seq {
                let score = |s: usize| {
                    let product =
                        |d| qkv[qkv_at(shape, b, t, 0, h, d)] * qkv[qkv_at(shape, b, s, 1, h, d)];
                    (0..shape.head_size).map(product).sum::<f64>() / (shape.head_size as f64).sqrt()
                };
                let scores: Vec<f64> = (0..=t).map(score).collect();
                out.extend(softmax(&scores));
                out.extend(vec![0.0; shape.seq - t - 1]);
            }
        }
    }
    out
}

pub(crate) fn apply(probabilities: &[f64], qkv: &[f64], shape: Shape) -> Vec<f64> {
    let mut out = Vec::new();
    for b in 0..shape.batch {
        for t in 0..shape.seq {
            for h in 0..shape.heads {
                for d in 0..shape.head_size {
                    let row = ((b * shape.heads + h) * shape.seq + t) * shape.seq;
                    let weighted = |s| probabilities[row + s] * qkv[qkv_at(shape, b, s, 2, h, d)];
                    out.push((0..shape.seq).map(weighted).sum());
                }
            }
        }
    }
    out
}

pub(crate) fn cross_entropy(logits: &[f64], targets: &[u32], vocab: usize) -> f64 {
    let rows = logits.chunks(vocab).zip(targets);
    let losses = rows.map(|(row, &target)| -softmax(row)[target as usize].ln());
    losses.sum::<f64>() / targets.len() as f64
}
