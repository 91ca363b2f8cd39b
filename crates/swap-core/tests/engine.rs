//! The engine as its users see it: random work under random plans, every transition by name,
//! every driver call failing, every wait removed.

#[cfg(test)]
mod engine {
    mod acl;
    mod aside;
    mod beside;
    mod branches;
    mod captures;
    mod chains;
    mod failing_replays;
    mod faults;
    mod hold;
    mod judge;
    mod lab;
    mod laid_out;
    mod lanes;
    mod launches;
    mod lending;
    mod lots;
    mod outside;
    mod plain;
    mod plans;
    #[cfg(feature = "planted")]
    mod planted;
    mod questions;
    mod random_plans;
    mod random_sizes;
    mod recording;
    mod replays;
    mod residency;
    mod reuse;
    mod script;
    mod sizes;
    mod submit;
    mod suspend;
    mod threads;
    mod told;
    mod unwatched;
    mod world;
}
