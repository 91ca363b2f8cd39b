//! The binary as its users see it: exit codes, stdout, stderr and files.

mod bad_input;
mod device;
mod max_model;
mod rig;
mod train;
