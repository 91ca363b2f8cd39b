//! Tensors in every place against a simple model, judged by the order checker and the driver's
//! own ledger.

// One test program, of which nothing can be reached from outside.
#![allow(unreachable_pub)]

#[cfg(test)]
mod tensor {
    mod bench;
    mod copies;
    mod faults;
    mod files;
    mod model;
    mod order;
    mod programs;
    mod room;
    mod show;
    mod views;
}
