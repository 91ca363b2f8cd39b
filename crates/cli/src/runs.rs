//! The command `compare-runs`: the reports of two runs beside each other.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;

use crate::args::CompareRunsArgs;
use crate::report::columns::{self, Align};
use crate::report::runs_page::{self, RunsPage, Side};
use crate::simulate;
use crate::train::{command_line, say};

use figures::{Explained, Figure};

mod figures;

#[derive(Serialize)]
struct Object<'a> {
    runs: [String; 2],
    figures: &'a [Figure],
}

/// Runs the command.
///
/// # Errors
/// One line that says which folder has no report, and how to get one.
pub(crate) fn run(args: &CompareRunsArgs) -> anyhow::Result<ExitCode> {
    let folders = [&args.first, &args.second];
    let explained = [figures::read(folders[0])?, figures::read(folders[1])?];
    let figures = figures::of(&explained);
    if let Some(path) = &args.report {
        let page = RunsPage {
            sides: [side(folders[0], &explained[0])?, side(folders[1], &explained[1])?],
            rows: figures.iter().map(Figure::row).collect(),
            command_line: command_line(),
        };
        adaptive::save_bytes(path, runs_page::text(&page)?.as_bytes())?;
    }
    if args.json {
        let runs = folders.map(|folder| folder.display().to_string());
        let text = serde_json::to_string(&Object { runs, figures: &figures });
        say(&(text.context("cannot write the comparison")? + "\n"))?;
    } else {
        say(&table(folders.map(|folder| folder.display().to_string()), &figures))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table([first, second]: [String; 2], figures: &[Figure]) -> String {
    let titles = [String::new(), first, second, "second to first".to_owned()];
    let rows: Vec<_> = std::iter::once(titles).chain(figures.iter().map(Figure::row)).collect();
    columns::lines(&rows, Align::Right)
}

/// The step that a report is about, as its run planned it and on the machine that it ran on.
fn side(folder: &Path, explained: &Explained) -> anyhow::Result<Side> {
    let page = simulate::page_of(&explained.options(folder))
        .with_context(|| format!("cannot draw the step of '{}'", folder.display()))?;
    Ok(Side { name: folder.display().to_string(), page })
}
