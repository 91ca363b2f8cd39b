//! Which crate may depend on which.

use super::Violation;
use crate::metadata::{Package, Use};

/// What one crate of the workspace may depend on.
struct Rule {
    name: &'static str,
    /// Crates of the workspace, always.
    inner: &'static [&'static str],
    /// Crates of the workspace, for tests.
    inner_tests: &'static [&'static str],
    /// Crates from elsewhere, always.
    outer: &'static [&'static str],
    /// Crates from elsewhere, for tests.
    outer_tests: &'static [&'static str],
}

const LAYERS: &[&str] = &["npu-sys", "vmem", "swap-core", "policy", "adaptive"];

/// The workspace, bottom first. Each layer sees only the one below it.
const RULES: [Rule; 12] = [
    Rule {
        name: "npu-sys",
        inner: &[],
        inner_tests: &["acl-standin"],
        outer: &["bytemuck", "libloading", "rustix", "smallvec", "thiserror"],
        outer_tests: &["cudarc", "proptest", "tempfile"],
    },
    Rule {
        name: "acl-standin",
        inner: &["npu-sys", "kernels"],
        inner_tests: &[],
        outer: &["half", "rustix"],
        outer_tests: &[],
    },
    Rule {
        name: "vmem",
        inner: &["npu-sys"],
        inner_tests: &["acl-standin"],
        outer: &["half", "safetensors", "serde_json", "smallvec", "tempfile", "thiserror"],
        outer_tests: &["proptest"],
    },
    // As another project would use it.
    Rule {
        name: "layer-by-layer",
        inner: &["vmem"],
        inner_tests: &[],
        outer: &[],
        outer_tests: &[],
    },
    Rule {
        name: "swap-core",
        inner: &["vmem"],
        inner_tests: &["acl-standin"],
        outer: &["smallvec", "thiserror", "tracing"],
        outer_tests: &["loom", "proptest"],
    },
    Rule {
        name: "policy",
        inner: &["swap-core"],
        inner_tests: &[],
        outer: &["crc32fast", "flate2", "serde", "serde_json", "thiserror", "tracing"],
        outer_tests: &["microlp", "proptest", "tempfile"],
    },
    Rule {
        name: "adaptive",
        inner: &["policy"],
        inner_tests: &[],
        outer: &["serde", "strsim", "thiserror", "toml"],
        outer_tests: &["proptest"],
    },
    Rule {
        name: "bridge",
        inner: &["adaptive"],
        inner_tests: LAYERS,
        outer: &["serde_json", "smallvec"],
        outer_tests: &["tempfile"],
    },
    Rule {
        name: "kernels",
        inner: &[],
        inner_tests: &[],
        outer: &["gemm"],
        outer_tests: &["proptest"],
    },
    Rule {
        name: "cli",
        inner: &["adaptive", "kernels"],
        inner_tests: &["acl-standin"],
        outer: &["anyhow", "askama", "clap", "indicatif", "serde", "serde_json", "thiserror"],
        outer_tests: &["assert_cmd", "proptest", "tempfile"],
    },
    Rule {
        name: "benches",
        inner: &["adaptive"],
        inner_tests: &["adaptive"],
        outer: &["criterion"],
        outer_tests: &["criterion"],
    },
    Rule {
        name: "xtask",
        inner: &[],
        inner_tests: &[],
        outer: &["anyhow", "serde_json", "xshell"],
        outer_tests: &[],
    },
];

/// The dependencies that no rule allows, and the crates without a rule.
pub(super) fn check(packages: &[Package]) -> Vec<Violation> {
    let is_inner = |name: &str| RULES.iter().any(|rule| rule.name == name);
    let mut violations = Vec::new();
    for package in packages {
        let manifest = format!("package {}", package.name);
        let Some(rule) = RULES.iter().find(|rule| rule.name == package.name) else {
            let text = "has no rule in xtask/src/tidy/layers.rs: say what it may depend on";
            violations.push(Violation::new(&manifest, 0, text));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let (always, for_tests) = match is_inner(name) {
                true => (rule.inner, rule.inner_tests),
                false => (rule.outer, rule.outer_tests),
            };
            let in_tests = dependency.use_ == Use::TestsOnly && for_tests.contains(&name);
            let anywhere = dependency.use_ != Use::BuildOnly && always.contains(&name);
            if !in_tests && !anywhere {
                let text = format!("may not depend on {name} (see xtask/src/tidy/layers.rs)");
                violations.push(Violation::new(&manifest, 0, text));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn found(package: &str, dependency: &str, use_: Use) -> usize {
        let dependencies = vec![Dependency { name: dependency.to_owned(), use_ }];
        check(&[Package { name: package.to_owned(), features: vec![], dependencies }]).len()
    }

    #[test]
    fn a_layer_sees_only_the_one_below() {
        for (index, upper) in LAYERS.iter().enumerate() {
            for (other, lower) in LAYERS.iter().enumerate() {
                for use_ in [Use::Always, Use::TestsOnly] {
                    let expect = usize::from(other + 1 != index);
                    assert_eq!(found(upper, lower, use_), expect, "{upper} on {lower}");
                }
            }
        }
        assert_eq!(found("cli", "adaptive", Use::Always), 0);
        assert_eq!(found("cli", "policy", Use::Always), 1);
        assert_eq!(found("cli", "policy", Use::TestsOnly), 1);
        assert_eq!(found("cli", "acl-standin", Use::TestsOnly), 0);
        assert_eq!(found("cli", "acl-standin", Use::Always), 1);
        assert_eq!(found("benches", "adaptive", Use::Always), 0);
        assert_eq!(found("benches", "vmem", Use::Always), 1);
        assert_eq!(found("xtask", "policy", Use::Always), 1);
    }

    #[test]
    fn other_crates_are_listed_one_by_one() {
        assert_eq!(found("policy", "serde", Use::Always), 0);
        assert_eq!(found("vmem", "serde", Use::Always), 1);
        assert_eq!(found("policy", "tempfile", Use::TestsOnly), 0);
        assert_eq!(found("policy", "tempfile", Use::Always), 1);
        assert_eq!(found("npu-sys", "cc", Use::BuildOnly), 1);
        assert_eq!(found("unheard-of", "serde", Use::Always), 1);
    }
}
