//! Names of ops, hashed once.

/// The name of an op. Make it a constant: hashing costs more than beginning an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpName {
    text: &'static str,
    hash: u64,
}

impl OpName {
    /// Hashes a name.
    pub const fn new(text: &'static str) -> OpName {
        OpName { text, hash: OpName::hash_of(text) }
    }

    /// The hash of a name (FNV-1a, so that it is the same in every run and on every machine).
    pub const fn hash_of(text: &str) -> u64 {
        let bytes = text.as_bytes();
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut index = 0;
        while index < bytes.len() {
            hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            index += 1;
        }
        hash
    }

    /// The name itself.
    pub const fn text(self) -> &'static str {
        self.text
    }

    /// Its hash.
    pub const fn hash(self) -> u64 {
        self.hash
    }
}
