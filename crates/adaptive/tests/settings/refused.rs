//! What is wrong with a file is said in one line, with the place and how to fix it.

use std::fs;
use std::path::Path;

use adaptive::Settings;

use crate::try_parse;

#[track_caller]
fn refused(text: &str) -> String {
    let line = try_parse(text).expect_err(text).to_string();
    assert!(!line.contains('\n') && line.contains("run.toml"), "{line}");
    line
}

#[track_caller]
fn check(text: &str, expect: &str) {
    assert_eq!(refused(text), expect);
}

#[test]
fn unknown_keys_name_the_nearest_one() {
    check(
        "# ours\nmemory = 1\n[smartswap]\nwarmup_stpe = 2\n",
        "unknown key `warmup_stpe` in run.toml line 4: did you mean `warmup_step`?",
    );
    check("memroy = 1", "unknown key `memroy` in run.toml line 1: did you mean `memory`?");
    check(
        "policy_prev = 1",
        "unknown key `policy_prev` in run.toml line 1: did you mean `smartswap.policy_pref`?",
    );
    check(
        "[smartswaps]\nwarmup_step = 2",
        "unknown key `smartswaps` in run.toml line 1: did you mean `[smartswap]`?",
    );
    check("\n\ntrain.step = 2", "unknown key `step` in run.toml line 3: did you mean `steps`?");
    // The first fault of a file is the one named, whatever the order of names.
    assert!(refused("zzz = 1\naaa = 2").contains("`zzz`"));
}

#[test]
fn wrong_types_say_what_is_wanted() {
    check(
        "warmup_steps = \"two\"",
        "`warmup_steps` in run.toml line 1 is \"two\": write a whole number from 1 to 1000000",
    );
    check("prefer = 3", "`prefer` in run.toml line 1 is 3: write `performance` or `memory`");
    check("json = 1", "`json` in run.toml line 1 is 1: write `true` or `false`");
    check("train = 3", "`train` in run.toml line 1 is 3: write a table: [train]");
    for value in ["[1]", "{a = 1}", "1979-05-27", "true", "1.5"] {
        assert!(refused(&format!("warmup_steps = {value}")).contains("a whole number"), "{value}");
        assert!(refused(&format!("memory = {value}")).contains("\"24GiB\""), "{value}");
        assert!(refused(&format!("train.out = {value}")).contains("a path"), "{value}");
        assert!(refused(&format!("strategy = {value}")).contains("`joint`"), "{value}");
    }
}

#[test]
fn values_out_of_range_say_the_range() {
    for (text, expect) in [
        ("warmup_steps = 0", "from 1 to"),
        ("effort = 100001", "from 1 to 100000"),
        ("effort = -1", "from 1 to 100000"),
        ("memory = 0", "a size such as"),
        ("memory = \"0%\"", "share of the peak"),
        ("memory = \"1001%\"", "share of the peak"),
        ("memory = -1", "a size such as"),
        ("slow_ratio = 0.9", "a number from 1 on"),
        ("slow_ratio = inf", "a number from 1 on"),
        ("slow_ratio = nan", "a number from 1 on"),
        ("link_out = \"1KiB/s\"", "at least 1MiB/s"),
        ("smartswap.op_diff_thresh = 1.01", "a number from 0 to 1"),
        ("smartswap.size_coverage_weight = -1", "a number from 0 on"),
        ("smartswap.print_level = 3", "0 (`DEBUG`), 1 (`INFO`) or 2 (`NONE`)"),
        ("smartswap.policy_pref = \"BETTER\"", "`performance` or `memory`"),
        ("smartswap.swap_bucket_size = \"-1KiB\"", "-1 for all"),
        ("smartswap.num_attn_layers_per_stage = 0", "from 1 to"),
        ("train.device = \"gpu\"", "\"cuda:1\""),
        ("train.device = \"cuda:x\"", "\"cuda:1\""),
        ("train.steps = 99999999999999999999", "a whole number from 1 on"),
    ] {
        let line = refused(text);
        assert!(line.contains(expect) && line.contains("line 1"), "{line}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let line = refused("[smartswap]\nwarmup_step = 4\nstable_step = 4\n");
    assert!(line.contains("`stable_step` is 4 and `warmup_step` 4"), "{line}");
    assert!(refused("smartswap.stable_step = 2").contains("must be larger"));
    assert!(refused("smartswap.target_memory = 1").contains("target_mode = true"));
}

#[test]
fn what_is_not_toml_names_the_line() {
    for (text, line) in [
        ("memory = ", "line 1"),
        ("\n\nmemory: 3", "line 3"),
        ("memory = 1\nmemory = 2", "line 2"),
        ("[smartswap\n", "line 1"),
        ("{\"memory\": 1}", "line 1"),
        ("memory = \"1", "line 1"),
    ] {
        let found = refused(text);
        assert!(found.starts_with(&format!("run.toml {line} is not TOML: ")), "{found}");
    }
    // Deep nesting is refused too, not followed.
    assert!(refused(&format!("memory = {}", "[".repeat(100_000))).contains("not TOML"));
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("run.toml");
    let load =
        |path: &Path| Settings::load(path).expect_err("it is not a file of settings").to_string();
    assert!(load(&folder.join("gone.toml")).contains("gone.toml"));
    fs::write(&file, b"memory = 1\n# \xff\n").unwrap();
    assert!(load(&file).ends_with("run.toml line 2 is not TOML: it is not UTF-8 text"));
    fs::write(&file, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(load(&file).contains("this is not a settings file"));
    fs::write(&file, "memory = \"1GiB\"\n").unwrap();
    assert!(Settings::load(&file).is_ok());
    fs::remove_dir_all(&folder).unwrap();
}
