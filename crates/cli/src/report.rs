//! What a run leaves behind: the page, the timeline, the JSON object and the terminal's table.
//!
//! All of them are drawn from one plain [`run::Run`] and from nothing else, so they cannot
//! disagree. Nothing here reads a clock: the same run gives the same bytes.

pub(crate) mod columns;
pub(crate) mod files;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod run;
pub(crate) mod runs_page;
pub(crate) mod step_page;
pub(crate) mod table;
pub(crate) mod timeline;
pub(crate) mod units;

mod cap_chart;
mod history_chart;
mod lanes;
pub(crate) mod scale;
mod step_chart;
mod summary;
pub(crate) mod svg;

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
