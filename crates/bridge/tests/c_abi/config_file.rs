//! Settings from a file, under those of the call.

use std::ffi::CString;
use std::path::PathBuf;

use super::rig::{
    BLOCK, MIB, OK, Rig, SETTINGS, Settings, Turn, USAGE, assert_fails, check, default_settings,
    explain, free, last_error, make, open, smartswap_checks_order, smartswap_close,
    smartswap_is_open, smartswap_note_order, stats, step,
};

struct File {
    _folder: tempfile::TempDir,
    path: CString,
}

impl File {
    fn new(text: &str) -> File {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("run.toml");
        std::fs::write(&path, text).expect("written");
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero inside");
        File { _folder: folder, path }
    }

    fn settings(&self) -> Settings {
        Settings { config_file: self.path.as_ptr(), ..default_settings() }
    }
}

/// Opens, asks for reasons, closes.
fn explained(settings: &Settings) -> String {
    assert_eq!(open(Some(settings)), OK, "{}", last_error());
    let text = explain().expect("it is open");
    assert_eq!(smartswap_close(), OK);
    text
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word} in {text}");
    }
}

#[test]
fn the_file_holds_where_nothing_else_is_said() {
    let file = File::new(
        "memory = \"32MiB\"\nhost_memory = \"64MiB\"\nmin_size = \"128KiB\"\n\
         strategy = \"swap\"\nprefer = \"memory\"\nlink_out = \"3GB/s\"\n",
    );
    let _turn = Turn::take();
    assert_says(
        &explained(&file.settings()),
        &[
            "\"limit_bytes\":33554432",
            "\"host_limit_bytes\":67108864",
            "\"min_block_bytes\":131072",
            "\"strategy\":\"swap\"",
            "\"prefer\":\"memory\"",
            "\"out_bytes_per_s\":3000000000.0",
        ],
    );
    let asked = Settings {
        memory_bytes: 16 * MIB,
        host_memory_bytes: 48 * MIB,
        min_block_bytes: 256 << 10,
        strategy: c"recompute".as_ptr(),
        prefer: c"performance".as_ptr(),
        ..file.settings()
    };
    assert_says(
        &explained(&asked),
        &[
            "\"limit_bytes\":16777216",
            "\"host_limit_bytes\":50331648",
            "\"min_block_bytes\":262144",
            "\"strategy\":\"recompute\"",
            "\"prefer\":\"performance\"",
            "\"out_bytes_per_s\":3000000000.0",
        ],
    );
}

#[test]
fn the_keys_of_the_originals_count_too() {
    let file = File::new(
        "[smartswap]\ntarget_mode = true\ntarget_memory = \"24MiB\"\n\
         tensor_size_filter = \"512KiB\"\npolicy_pref = \"BETTER_MEMORY_SAVING\"\n",
    );
    let _turn = Turn::take();
    assert_says(
        &explained(&file.settings()),
        &["\"limit_bytes\":25165824", "\"min_block_bytes\":524288", "\"prefer\":\"memory\""],
    );
    let ours = File::new("memory = \"16MiB\"\n[smartswap]\ntarget_mode = true\n");
    assert_says(&explained(&ours.settings()), &["\"limit_bytes\":16777216"]);
}

#[test]
fn the_loop_is_that_of_the_file() {
    /// Steps until WarmUp has ended.
    fn warmup_steps(text: &str) -> u64 {
        let file = File::new(text);
        let rig = Rig::with(Settings { memory_bytes: 4 * MIB, ..file.settings() });
        let blocks: Vec<_> = (0..8).map(|tag| make(BLOCK, tag)).collect();
        step();
        while stats().stage == 0 {
            assert!(stats().steps < 40, "it never ends");
            for (tag, &block) in blocks.iter().enumerate() {
                check(block, BLOCK, tag as u64);
            }
            step();
        }
        let steps = stats().steps;
        blocks.into_iter().for_each(free);
        rig.close();
        steps
    }
    let (few, many) = (warmup_steps("warmup_steps = 2"), warmup_steps("warmup_steps = 9"));
    assert_eq!(many, few + 7);
    assert_eq!(warmup_steps("[smartswap]\nwarmup_step = 9\nstable_step = 12"), many);
}

#[test]
fn order_is_checked_where_the_file_says_so() {
    let file = File::new("check_order = true\n");
    for (settings, checks) in [(default_settings(), 0), (file.settings(), 1)] {
        let rig = Rig::with(Settings { memory_bytes: 4 * MIB, ..settings });
        assert_eq!(smartswap_checks_order(), checks);
        let blocks: Vec<_> = (0..8).map(|tag| make(BLOCK, tag)).collect();
        for (tag, &block) in blocks.iter().enumerate() {
            check(block, BLOCK, tag as u64);
        }
        step();
        assert!(stats().swapped_out_bytes > 0 && stats().swapped_in_bytes > 0);
        // The software device has no streams of others.
        (0..6).for_each(|call| assert_eq!(smartswap_note_order(call, 1, 2), OK));
        assert_fails(smartswap_note_order(6, 1, 2), USAGE, "smartswap_order_call");
        assert_fails(smartswap_note_order(-1, 1, 2), USAGE, "smartswap_order_call");
        let text = explain().expect("it is open");
        let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let order = &told["order"];
        if checks == 1 {
            assert!(order["accesses"].as_u64().unwrap() >= 16, "{order}");
            assert!(order["waits"].as_u64().unwrap() > 0, "{order}");
            assert_eq!(order["violations"], 0, "{order}");
        } else {
            assert!(order.is_null(), "{order}");
        }
        blocks.into_iter().for_each(free);
        rig.close();
    }
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_line() {
    let _turn = Turn::take();
    for (text, words) in [
        ("memory = \"16MiB\"\nstratgy = \"swap\"\n", "did you mean `strategy`?"),
        ("memory = \"16MiB\"\nstratgy = \"swap\"\n", "line 2"),
        ("memory = 16MiB\n", "is not TOML"),
        ("min_size = \"much\"\n", "`min_size`"),
        ("[smartswap]\ntarget_memory = \"24MiB\"\n", "target_mode"),
    ] {
        let file = File::new(text);
        assert_fails(open(Some(&file.settings())), SETTINGS, words);
        assert_eq!(smartswap_is_open(), 0);
    }
    let missing = c"/nowhere/run.toml";
    let settings = Settings { config_file: missing.as_ptr(), ..default_settings() };
    assert_fails(open(Some(&settings)), SETTINGS, "/nowhere/run.toml");
}

#[test]
fn a_cap_by_the_steps_own_peak_is_refused_unless_one_is_given() {
    let _turn = Turn::take();
    for text in ["memory = \"60%\"", "[smartswap]\nreduction_memory = \"3GiB\""] {
        let file = File::new(text);
        assert_fails(open(Some(&file.settings())), SETTINGS, "not known before the first step");
        let given = Settings { memory_bytes: 16 * MIB, ..file.settings() };
        assert_says(&explained(&given), &["\"limit_bytes\":16777216"]);
    }
}
