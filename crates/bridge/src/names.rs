//! Names of ops that come from C: each is kept once, for ever, and found again without a lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use adaptive::OpName;

/// All names so far. A program has a few hundred.
static NAMES: Mutex<BTreeMap<String, OpName>> = Mutex::new(BTreeMap::new());

/// Entries of a thread's cache: a power of two well above the number of names.
const CACHE_SLOTS: usize = 1024;

/// The names that a thread has seen, by hash. Two that share an entry take turns.
#[derive(Debug)]
pub(crate) struct NameCache {
    slots: Vec<Option<OpName>>,
}

impl Default for NameCache {
    fn default() -> NameCache {
        NameCache { slots: vec![None; CACHE_SLOTS] }
    }
}

impl NameCache {
    pub(crate) fn find(&mut self, text: &str) -> OpName {
        let slot = &mut self.slots[OpName::hash_of(text) as usize % CACHE_SLOTS];
        match slot {
            Some(name) if name.text() == text => *name,
            _ => *slot.insert(intern(text)),
        }
    }
}

fn intern(text: &str) -> OpName {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&name) = names.get(text) {
        return name;
    }
    let name = OpName::new(Box::leak(text.to_owned().into_boxed_str()));
    names.insert(text.to_owned(), name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_whoever_asks() {
        let (mut one, mut other) = (NameCache::default(), NameCache::default());
        let texts: Vec<String> = (0..3 * CACHE_SLOTS).map(|i| format!("op{i}")).collect();
        for _ in 0..2 {
            for text in &texts {
                let name = one.find(text);
                assert_eq!(name.text(), text);
                assert!(std::ptr::eq(name.text(), other.find(text).text()));
            }
        }
    }
}
