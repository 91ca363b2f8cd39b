//! The page on configuration and the code agree: the same keys, what they accept, their defaults.

use std::collections::BTreeMap;
use std::path::Path;

use adaptive::{JointConfig, Key, LoopConfig, Named, Prefer, Settings, Strategy};

/// Rows of the page's tables by key: what is accepted, and the default.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(page).expect("the page is there");
    let mut rows = BTreeMap::new();
    let mut table = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            // A heading names its table: `[train]`, or the top.
            let name = heading.split_once("`[").and_then(|(_, rest)| rest.split_once("]`"));
            table = match name {
                Some((name, _)) => Some(format!("{name}.")),
                None => heading.contains("at the top").then(String::new),
            };
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(table), [_, key, accepts, default, meaning, ..]) = (&table, &cells[..])
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            assert!(meaning.len() > 10, "{key} is explained");
            let row = ((*accepts).to_owned(), (*default).to_owned());
            let twice = rows.insert(format!("{table}{key}"), row);
            assert_eq!(twice, None, "{key} is listed twice");
        }
    }
    rows
}

#[test]
fn the_page_lists_each_key_with_what_it_accepts_and_its_default() {
    let mut rows = documented();
    let keys = Settings::keys();
    assert!(keys.len() > 50, "{}", keys.len());
    for key in &keys {
        let (accepts, default) =
            rows.remove(&key.to_string()).unwrap_or_else(|| panic!("{key} is not documented"));
        assert_eq!(
            (accepts.as_str(), default.as_str()),
            (key.accepts.as_str(), key.default),
            "{key}"
        );
    }
    assert!(rows.is_empty(), "documented, but not known: {:?}", rows.keys());
}

#[test]
fn the_python_package_offers_the_same_choices() {
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/smartswap/settings.py");
    let text = std::fs::read_to_string(module).expect("the package is there");
    fn names<T: Named>() -> Vec<String> {
        T::ALL.iter().map(|(_, name, _)| format!("{name:?}")).collect()
    }
    for (list, names) in [("PREFERENCES", names::<Prefer>()), ("STRATEGIES", names::<Strategy>())] {
        let line = format!("\n{list} = ({})\n", names.join(", "));
        assert!(text.contains(&line), "{line}");
    }
}

#[test]
fn the_originals_keys_are_all_there() {
    let keys: Vec<&str> = Settings::keys()
        .iter()
        .filter(|key| key.table == "smartswap")
        .map(|key| key.name)
        .collect();
    let expect = [
        "warmup_step",
        "stable_step",
        "op_diff_thresh",
        "tensor_size_filter",
        "redundant_memory",
        "adjust_memory",
        "target_mode",
        "target_memory",
        "reduction_memory",
        "size_coverage_weight",
        "policy_v2",
        "policy_pref",
        "swap_bucket_size",
        "num_attn_layers_per_stage",
        "save_policy",
        "print_level",
    ];
    assert_eq!(keys, expect);
}

/// What a file comes to, wherever it is used.
fn outcome(settings: &Settings) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        settings.loop_config(LoopConfig::default()),
        settings.joint_config(JointConfig::default()),
        settings.machine_of(1 << 30),
        settings.save_policy(),
        settings.print_level(),
    )
}

/// The default as a value, if it is one: before any remark on a command.
fn literal(key: &Key) -> Option<&str> {
    let first = key.default.split(';').next().unwrap_or_default().trim();
    Settings::default().set(&key.to_string(), first).ok().map(|()| first)
}

#[test]
fn writing_a_default_down_changes_nothing() {
    let none = outcome(&Settings::default());
    let mut tried = 0;
    for key in Settings::keys() {
        // These say which blocks move and what the budget is, which is nowhere set by default.
        let sets_more = ["min_size", "prefer", "stable_step", "target_memory", "reduction_memory"];
        let Some(default) = literal(&key).filter(|_| !sets_more.contains(&key.name)) else {
            continue;
        };
        let mut settings = Settings::default();
        settings.set(&key.to_string(), default).expect("it was tried");
        if key.table.is_empty() || key.table == "smartswap" {
            assert_eq!(outcome(&settings), none, "{key} = {default}");
            tried += 1;
        }
    }
    assert!(tried >= 22, "{tried}");
    // The defaults of those that are left out above, where they hold.
    let loops = |text: &str| crate::parse(text).loop_config(LoopConfig::default());
    assert_eq!(loops("smartswap.stable_step = 5"), loops(""));
    let tries = |text: &str| crate::parse(text).smartswap_config().search_steps;
    assert_eq!(tries("smartswap.stable_step = 10"), tries(""));
    let budget = |text: &str| crate::parse(text).budget();
    let absolute = "[smartswap]\ntarget_mode = true\n";
    assert_eq!(budget(absolute), budget(&format!("{absolute}target_memory = \"40GiB\"")));
    let relative = "[smartswap]\ntarget_mode = false\n";
    assert_eq!(budget(relative), budget(&format!("{relative}reduction_memory = \"3GiB\"")));
}

#[test]
fn each_key_can_be_set_from_text_and_from_a_file() {
    let values = ["true", "3", "performance", "joint", "swap", "1GiB", "0.5", "host", "1", "text"];
    for key in Settings::keys() {
        let name = key.to_string();
        let mut set = 0;
        for value in values {
            let mut settings = Settings::default();
            if settings.set(&name, value).is_ok() {
                set += 1;
                assert_ne!(settings, Settings::default(), "{key} = {value}");
                let quoted = format!("{name} = \"{value}\"\n");
                let plain = format!("{name} = {value}\n");
                let read = [plain, quoted].map(|text| Settings::parse(&text, Path::new("x")));
                let same = read.iter().flatten().any(|file| *file == settings);
                // A budget of theirs needs its mode beside it.
                let alone = !["target_memory", "stable_step"].contains(&key.name);
                assert!(same || !alone, "{key} = {value}: {read:?}");
            }
        }
        assert!(set > 0, "{key}");
    }
}
