//! `tidy`: the house rules that no other tool checks.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use xshell::Shell;

use crate::metadata;

mod front_end;
mod functions;
mod layers;
mod links;
mod promises;
mod rules;
mod source;
mod unsafe_code;

/// Folders of what builds and tests leave behind.
const BUILT: [&str; 5] = ["target", "out", "build", "__pycache__", "proptest-regressions"];

/// A broken rule and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    /// The file, from the workspace's root.
    file: String,
    /// The line, from 1; 0 if it concerns the whole file.
    line: usize,
    text: String,
}

impl Violation {
    fn new(file: &str, line: usize, text: impl Into<String>) -> Violation {
        Violation { file: file.to_owned(), line, text: text.into() }
    }
}

/// A file of the workspace.
#[derive(Debug)]
struct SourceFile {
    /// From the workspace's root, with `/`.
    path: String,
    text: String,
}

/// Checks the whole workspace and prints where `unsafe` is used.
///
/// # Errors
/// If a rule is broken; all places are printed.
pub(crate) fn run(shell: &Shell, root: &Path) -> anyhow::Result<()> {
    let mut paths = Vec::new();
    collect(root, root, &mut paths)?;
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(root.join(&path));
        files.push(SourceFile { text: text.with_context(|| format!("cannot read {path}"))?, path });
    }
    let mut violations = layers::check(&metadata::workspace(shell)?.packages);
    let mut unsafe_counts = Vec::new();
    for file in &files {
        violations.extend(rules::check_text(file));
        if file.path.ends_with(".md") {
            violations.extend(links::check(file, |target| root.join(target).exists()));
        }
        if file.path == promises::PAGE {
            violations.extend(promises::check(file, |target| root.join(target).exists()));
        }
        if front_end::is_source(&file.path) {
            violations.extend(front_end::check(file));
        }
        if file.path.ends_with(".rs") {
            let code = source::parse(&file.text);
            violations.extend(rules::check_code(file, &code));
            violations.extend(functions::check(file, &code));
            let count = unsafe_code::count(&code);
            violations.extend(unsafe_code::check(&file.path, count));
            unsafe_counts.extend((count > 0).then_some((count, &file.path)));
        }
    }
    report(files.len(), &mut violations, &unsafe_counts)
}

fn report(
    file_count: usize,
    violations: &mut [Violation],
    unsafe_counts: &[(usize, &String)],
) -> anyhow::Result<()> {
    println!("unsafe blocks and impls:");
    for (count, path) in unsafe_counts {
        println!("{count:>5}  {path}");
    }
    let (in_tests, outside): (Vec<_>, Vec<_>) =
        unsafe_counts.iter().partition(|(_, path)| rules::is_test_file(path));
    let sum = |counts: &[&(usize, &String)]| counts.iter().map(|(count, _)| count).sum::<usize>();
    println!("{:>5}  in all, {} more in tests", sum(&outside), sum(&in_tests));
    violations.sort();
    for Violation { file, line, text } in violations.iter() {
        eprintln!("{file}:{line}: {text}");
    }
    if !violations.is_empty() {
        bail!("tidy: {} rules broken in {file_count} files", violations.len());
    }
    println!("tidy: {file_count} files keep the rules");
    Ok(())
}

/// Whether a folder holds what a build of the Python package in place copied.
fn is_copy(path: &Path) -> bool {
    path.ends_with("python/smartswap/include")
}

/// The files that rules apply to: sources, manifests, documents and the CI script.
fn collect(root: &Path, folder: &Path, paths: &mut Vec<String>) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()));
    let mut entries: Vec<PathBuf> =
        entries?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            let is_ours = !name.starts_with('.') || name == ".ci" || name == ".cargo";
            if is_ours && !BUILT.contains(&name) && !is_copy(&path) {
                collect(root, &path, paths)?;
            }
            continue;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        let in_ci = folder.file_name().is_some_and(|folder| folder == ".ci");
        if in_ci || matches!(extension, Some("rs" | "toml" | "md" | "py" | "cpp" | "h")) {
            let path = path.strip_prefix(root).expect("the walk began at the root");
            paths.push(path.to_str().context("a file's name is not UTF-8")?.to_owned());
        }
    }
    Ok(())
}
