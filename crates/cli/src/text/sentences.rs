//! Sentences of a small grammar: what a run without a text file trains on. They are the same in
//! each build, so that runs of different versions can be compared.

use crate::gpt::random::Random;

/// About so long is the text.
const SIZE_BYTES: usize = 80_000;

const SUBJECTS: [&str; 10] = [
    "the miller",
    "an old horse",
    "the ferry",
    "my neighbour",
    "a tall ship",
    "the baker's boy",
    "the north wind",
    "a grey cat",
    "the night train",
    "her brother",
];
const VERBS: [&str; 10] = [
    "waits for",
    "follows",
    "carries",
    "never sees",
    "looks after",
    "comes back with",
    "has lost",
    "paints",
    "listens to",
    "sells",
];
const OBJECTS: [&str; 10] = [
    "the first snow",
    "a sack of flour",
    "two letters",
    "the harbour lights",
    "a broken clock",
    "the river",
    "bread and salt",
    "the last guest",
    "an empty boat",
    "blue glass",
];
const PLACES: [&str; 8] = [
    "by the bridge",
    "at noon",
    "behind the mill",
    "in the rain",
    "before anyone wakes",
    "on market day",
    "far from town",
    "under the bell",
];

/// The text.
pub(super) fn sentences() -> String {
    let mut random = Random::new(1, 0);
    let mut text = String::with_capacity(SIZE_BYTES + 100);
    while text.len() < SIZE_BYTES {
        let mut word = |words: &[&'static str]| words[random.below(words.len() as u64) as usize];
        let sentence =
            [word(&SUBJECTS), " ", word(&VERBS), " ", word(&OBJECTS), " ", word(&PLACES), ".\n"];
        text.extend(sentence);
    }
    text
}
