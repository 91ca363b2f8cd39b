//! The pool and the arena as state machines: random calls against a simple model, judged by the
//! order checker and by the driver's own ledger.

#[cfg(test)]
mod memory {
    mod ahead;
    mod arena;
    mod faults;
    mod forks;
    mod growth;
    mod held;
    mod plain;
    mod planned;
    #[cfg(feature = "planted")]
    mod planted;
    mod pool;
    mod probe;
    mod shortage;
    mod streams;
    mod swapped;
}
