//! The wrappers: alone in front of a driver that does nothing, and stacked on the host driver.

#[cfg(test)]
mod wrap {
    mod bench;
    mod check;
    mod fake;
    mod fault;
    mod host;
    mod meter;
    mod programs;
    mod record;
    mod stack;
}
