//! The text to train on, byte by byte, and the batches cut from it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::gpt::random::Random;

mod sentences;

/// A text that cannot be used, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextError {
    /// The file cannot be read.
    #[error(
        "cannot read the text '{}': {source}; name a readable file with --text",
        path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The text is shorter than one sequence.
    #[error(
        "the text has {len} bytes and a sequence needs {needed}; take a longer --text or a \
         smaller --seq"
    )]
    TooShort {
        /// Bytes of the text.
        len: usize,
        /// Bytes of a sequence and the one that follows.
        needed: usize,
    },
}

/// A text to train on.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    bytes: Arc<[u8]>,
}

/// The tokens of one step and the tokens that follow each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Batch {
    /// Sequence after sequence.
    pub(crate) tokens: Vec<u32>,
    /// For each token the one behind it in the text.
    pub(crate) targets: Vec<u32>,
}

impl Text {
    /// Reads a file, or makes a text of small sentences.
    pub(crate) fn open(path: Option<&Path>) -> Result<Text, TextError> {
        let bytes = match path {
            Some(path) => fs::read(path)
                .map_err(|source| TextError::Unreadable { path: path.to_owned(), source })?,
            None => sentences::sentences().into_bytes(),
        };
        Ok(Text { bytes: bytes.into() })
    }

    /// Checks that there is at least one sequence of `seq` tokens with a target for each.
    pub(crate) fn check(&self, seq: usize) -> Result<(), TextError> {
        let (len, needed) = (self.bytes.len(), seq.saturating_add(1));
        if len < needed { Err(TextError::TooShort { len, needed }) } else { Ok(()) }
    }

    /// The longest sequence that the text has.
    pub(crate) fn longest_seq(&self) -> usize {
        self.bytes.len().saturating_sub(1)
    }

    /// The batch of step `step`: sequences from random places. It depends on the text, the sizes,
    /// the seed and the step alone, so runs can be compared and steps can be taken in any order.
    ///
    /// # Panics
    /// If [`check`](Text::check) fails for `seq`.
    pub(crate) fn batch(&self, batch: usize, seq: usize, seed: u64, step: u64) -> Batch {
        /// Keeps these streams apart from those of the parameters.
        const STREAMS: u64 = 1 << 32;
        let mut random = Random::new(seed, STREAMS + step);
        let starts = self.bytes.len().checked_sub(seq).expect("checked by the caller") as u64;
        let mut tokens = Vec::with_capacity(batch * seq);
        let mut targets = Vec::with_capacity(batch * seq);
        for _ in 0..batch {
            let start = random.below(starts) as usize;
            let piece = &self.bytes[start..=start + seq];
            tokens.extend(piece[..seq].iter().map(|&byte| u32::from(byte)));
            targets.extend(piece[1..].iter().map(|&byte| u32::from(byte)));
        }
        Batch { tokens, targets }
    }
}

impl Batch {
    /// A batch for ops that only pretend to work: right in size, without a text.
    pub(crate) fn blank(batch: usize, seq: usize) -> Batch {
        Batch { tokens: vec![0; batch * seq], targets: vec![0; batch * seq] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Text {
        Text { bytes: bytes.into() }
    }

    #[test]
    fn batches_are_pieces_of_the_text_with_the_bytes_that_follow() {
        let text = text(b"abcdefghij");
        let mut first_tokens = Vec::new();
        for step in 0..100 {
            let batch = text.batch(2, 4, 1, step);
            assert_eq!(batch, text.batch(2, 4, 1, step));
            for (tokens, targets) in batch.tokens.chunks(4).zip(batch.targets.chunks(4)) {
                first_tokens.push(tokens[0]);
                let next: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
                assert_eq!(targets, next);
                assert!(tokens.windows(2).all(|pair| pair[1] == pair[0] + 1));
            }
        }
        first_tokens.sort_unstable();
        first_tokens.dedup();
        let all: Vec<u32> = (b'a'..=b'f').map(u32::from).collect();
        assert_eq!(first_tokens, all, "every place that has room is reached");
    }

    #[test]
    fn seeds_and_steps_give_different_batches() {
        let text = Text::open(None).expect("it needs no file");
        let batch = text.batch(4, 32, 1, 0);
        assert_ne!(batch, text.batch(4, 32, 2, 0));
        assert_ne!(batch, text.batch(4, 32, 1, 1));
    }

    #[test]
    fn a_text_needs_one_byte_more_than_a_sequence() {
        assert!(text(b"abcde").check(4).is_ok());
        let error = text(b"abcd").check(4).expect_err("one byte is missing").to_string();
        assert!(error.contains("has 4 bytes and a sequence needs 5"), "{error}");
        assert!(text(b"").check(usize::MAX).is_err());
        assert_eq!(text(b"abcde").batch(1, 4, 9, 9).tokens.len(), 4);
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let path = Path::new("/nonexistent/text");
        let error = Text::open(Some(path)).expect_err("there is no such file").to_string();
        assert!(error.contains("/nonexistent/text") && error.contains("--text"), "{error}");
    }
}
