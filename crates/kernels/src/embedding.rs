//! Token and position embeddings: `out[row] = token_table[token] + position_table[position]`.

/// Overwrites `out` with the embeddings of `tokens`, whose sequences are as long as the position
/// table.
///
/// # Panics
/// If the lengths do not fit each other, or a token is not in the table.
pub fn forward(
    out: &mut [f32],
    tokens: &[u32],
    token_table: &[f32],
    position_table: &[f32],
    hidden: usize,
) {
    assert_eq!(out.len(), tokens.len() * hidden, "one output row for each token");
    let positions = position_table.chunks_exact(hidden).cycle();
    for ((row, &token), position) in out.chunks_exact_mut(hidden).zip(tokens).zip(positions) {
        let embedding = &token_table[row_range(token, hidden)];
        for ((value, a), b) in row.iter_mut().zip(embedding).zip(position) {
            *value = a + b;
        }
    }
}

/// Accumulates the gradient of the token table.
///
/// It accumulates because a tied head has a share in the same gradient.
///
/// # Panics
/// If the lengths do not fit each other, or a token is not in the table.
pub fn token_gradient(d_token_table: &mut [f32], d_out: &[f32], tokens: &[u32], hidden: usize) {
    assert_eq!(d_out.len(), tokens.len() * hidden, "one gradient row for each token");
    for (row, &token) in d_out.chunks_exact(hidden).zip(tokens) {
        let target = &mut d_token_table[row_range(token, hidden)];
        for (sum, value) in target.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

/// Overwrites the gradient of the position table with the sum over all sequences.
///
/// # Panics
/// If `d_out` is not whole sequences.
pub fn position_gradient(d_position_table: &mut [f32], d_out: &[f32]) {
    assert_eq!(d_out.len() % d_position_table.len(), 0, "the gradient must be whole sequences");
    d_position_table.fill(0.0);
    for sequence in d_out.chunks_exact(d_position_table.len()) {
        for (sum, value) in d_position_table.iter_mut().zip(sequence) {
            *sum += value;
        }
    }
}

fn row_range(token: u32, hidden: usize) -> std::ops::Range<usize> {
    let start = token as usize * hidden;
    start..start + hidden
}
