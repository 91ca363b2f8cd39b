//! What `cargo metadata` says about the workspace.

use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use xshell::{Shell, cmd};

/// The workspace as cargo sees it.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// Its own crates.
    pub(crate) packages: Vec<Package>,
    /// Where builds go.
    pub(crate) target_folder: PathBuf,
}

/// One crate of the workspace.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) features: Vec<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// What a crate's manifest asks for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) use_: Use,
}

/// When a dependency is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Always,
    TestsOnly,
    BuildOnly,
}

/// Asks cargo. Nothing is resolved, so it needs no registry.
pub(crate) fn workspace(shell: &Shell) -> anyhow::Result<Workspace> {
    let json = cmd!(shell, "cargo metadata --format-version 1 --no-deps").quiet().read()?;
    let value: Value = serde_json::from_str(&json).context("cargo metadata gave no JSON")?;
    parse(&value).context("cargo metadata gave another form than expected")
}

fn parse(value: &Value) -> Option<Workspace> {
    let packages = value["packages"].as_array()?.iter().map(|package| {
        let dependencies = package["dependencies"].as_array()?.iter().map(|dependency| {
            let use_ = match dependency["kind"].as_str() {
                None => Use::Always,
                Some("dev") => Use::TestsOnly,
                Some(_) => Use::BuildOnly,
            };
            Some(Dependency { name: dependency["name"].as_str()?.to_owned(), use_ })
        });
        Some(Package {
            name: package["name"].as_str()?.to_owned(),
            features: package["features"].as_object()?.keys().cloned().collect(),
            dependencies: dependencies.collect::<Option<_>>()?,
        })
    });
    Some(Workspace {
        packages: packages.collect::<Option<_>>()?,
        target_folder: PathBuf::from(value["target_directory"].as_str()?),
    })
}
