//! The C interface as a C program sees it: every function, rightly and wrongly used.

// Brings the exported functions in; they are called by their C declarations alone.
#[cfg(test)]
use smartswap as _;

#[cfg(test)]
mod c_abi {
    mod choice;
    mod closed;
    mod config_file;
    mod graphs;
    mod interface;
    mod layout;
    mod memory;
    mod misuse;
    mod pluggable;
    mod pressure;
    mod programs;
    mod recording;
    mod replaying;
    mod reports;
    mod rig;
    mod sharing;
    mod sleeping;
    mod sources;
    mod threads;
    mod visiting;
}
