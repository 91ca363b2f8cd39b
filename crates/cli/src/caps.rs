//! Reads what a step would take under other caps: a report's `caps.json`.

use std::path::Path;

use adaptive::CapCosts;
use anyhow::Context as _;

/// Reads the file.
///
/// # Errors
/// If it cannot be read, is not such a file, or tells of no cap.
pub(crate) fn load(path: &Path) -> anyhow::Result<CapCosts> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("'{name}' cannot be read"))?;
    let costs: CapCosts = serde_json::from_str(&text)
        .with_context(|| format!("'{name}' is not the caps.json of a report"))?;
    anyhow::ensure!(
        !costs.caps.is_empty() && costs.unlimited_us > 0.0,
        "'{name}' tells of no cap: it was written of a step that takes no time or no memory"
    );
    Ok(costs)
}
