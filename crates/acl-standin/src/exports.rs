//! The functions that are exported, grouped as in the library's documentation.

pub(crate) mod attribute;
pub(crate) mod callback;
pub(crate) mod collective;
pub(crate) mod copy;
pub(crate) mod descriptor;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod ledger;
pub(crate) mod memory;
pub(crate) mod operator;
pub(crate) mod stream;
pub(crate) mod system;
pub(crate) mod tooling;
pub(crate) mod virtual_memory;
