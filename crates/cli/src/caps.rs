//! What a step would take under other caps, as a report's `caps.json` tells.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

/// The file: a step with memory for everything, and under smaller caps.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Caps {
    /// The cap that the training ran under.
    pub(crate) limit_bytes: u64,
    /// What the step needs when nothing leaves.
    pub(crate) peak_bytes: u64,
    /// The step with memory for everything, as simulated.
    pub(crate) unlimited_us: f64,
    /// The median Stable step under the cap of the training, if there was one.
    pub(crate) measured_us: Option<f64>,
    /// From the largest cap to the smallest.
    pub(crate) caps: Vec<Cap>,
}

/// The step under one cap, as planned with little effort and simulated.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Cap {
    pub(crate) limit_bytes: u64,
    pub(crate) step_us: f64,
    pub(crate) out_bytes: u64,
    pub(crate) in_bytes: u64,
    pub(crate) recomputed_us: f64,
    /// What most of the added time goes to.
    pub(crate) burden: Burden,
}

/// See `adaptive::Burden`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Burden {
    None,
    Link,
    Recompute,
}

impl Caps {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read, is none, or tells of no cap.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Caps> {
        let name = path.display();
        let text =
            std::fs::read_to_string(path).with_context(|| format!("'{name}' cannot be read"))?;
        let caps: Caps = serde_json::from_str(&text)
            .with_context(|| format!("'{name}' is not the caps.json of a report"))?;
        anyhow::ensure!(
            !caps.caps.is_empty() && caps.unlimited_us > 0.0,
            "'{name}' tells of no cap: it was written of a step that takes no time or no memory"
        );
        Ok(caps)
    }

    /// How many times as long as with memory for everything a step takes.
    pub(crate) fn ratio(&self, step_us: f64) -> f64 {
        step_us / self.unlimited_us
    }
}
