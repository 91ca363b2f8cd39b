//! The command `top`: memory, copies and stalls of a running training, as the training tells them.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::args::TopArgs;
use crate::train::say;

use status::{Life, Status};

mod frame;
mod status;

/// How often a training is looked at. It tells four times a second at most.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs the command. Exit code 1 says that the training has ended without saying so.
///
/// # Errors
/// One line that says which trainings there are, or why there is none.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let trainings = status::all();
    let Some(pid) = args.pid else { return list(args, &trainings) };
    let Some(status) = trainings.into_iter().find(|status| status.pid == pid) else {
        bail!("{}", none_of(pid));
    };
    if args.json {
        let text = serde_json::to_string(&status.told).context("cannot write the status")?;
        say(&(text + "\n"))?;
        return Ok(exit_code(&status));
    }
    if args.once || !std::io::stdout().is_terminal() {
        say(&frame::draw(&status, None))?;
        return Ok(exit_code(&status));
    }
    watch(status)
}

/// Shows a training until it ends.
#[allow(clippy::disallowed_methods)] // It looks again from time to time: nobody tells it to.
fn watch(mut status: Status) -> anyhow::Result<ExitCode> {
    let mut before: Option<Status> = None;
    let mut drawn_lines = 0;
    loop {
        let text = frame::draw(&status, before.as_ref());
        // Up to where the last one began, and each line anew, cut where the terminal ends.
        let up = if drawn_lines > 0 { format!("\x1b[{drawn_lines}A") } else { String::new() };
        say(&format!("{up}\x1b[?7l{}\x1b[?7h\x1b[J", text.replace('\n', "\x1b[K\n")))?;
        drawn_lines = text.lines().count();
        if status.life == Life::Dead {
            return Ok(exit_code(&status));
        }
        thread::sleep(PAUSE);
        let Some(next) = status::of(status.pid) else {
            say(&format!("process {} has ended its training\n", status.pid))?;
            return Ok(ExitCode::SUCCESS);
        };
        if next.told.written_s > status.told.written_s {
            before = Some(status);
        }
        status = next;
    }
}

fn list(args: &TopArgs, trainings: &[Status]) -> anyhow::Result<ExitCode> {
    if args.json {
        let told: Vec<_> = trainings.iter().map(|status| &status.told).collect();
        let text = serde_json::to_string(&told).context("cannot write the status")?;
        say(&(text + "\n"))?;
    } else if trainings.is_empty() {
        bail!("no training of yours under SmartSwap has finished a step on this machine yet");
    } else {
        say(&frame::list(trainings))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn none_of(pid: u32) -> String {
    let lives = status::is_there(pid);
    let why = if lives {
        "has told nothing: no step with SmartSwap has ended there"
    } else {
        "is not there"
    };
    format!("process {pid} {why}; smartswap top without a number lists what is")
}

fn exit_code(status: &Status) -> ExitCode {
    match status.life {
        Life::Running => ExitCode::SUCCESS,
        Life::Dead => ExitCode::from(1),
    }
}
