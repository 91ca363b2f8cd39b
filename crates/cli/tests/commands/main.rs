//! The binary as its users see it: exit codes, stdout, stderr and files.

mod bad_input;
mod compare;
mod config;
mod device;
mod doctor;
mod judge;
mod max_model;
mod outputs;
mod parts;
mod plan;
mod rig;
mod runs;
mod simulate;
mod steps;
mod stress;
mod top;
mod train;
