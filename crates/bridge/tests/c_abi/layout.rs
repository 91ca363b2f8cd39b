//! The header, as a C and a C++ compiler read it, against the declarations of the tests.

use std::mem::offset_of;

use super::programs::{compile, run};
use super::rig::{
    AT_ONCE, Counter, FIGURES, LATER, NEXT_STEP, Replay, Settings, Stats, TIMES, Touched,
    default_settings,
};

macro_rules! fields {
    ($type:ty, $name:literal: $($field:ident)*) => {
        std::iter::once(format!("{} {}", $name, size_of::<$type>()))
            $(.chain(std::iter::once(format!(
                "{}.{} {}", $name, stringify!($field), offset_of!($type, $field)
            ))))*
            .collect::<Vec<String>>()
    };
}

fn ours() -> Vec<String> {
    let mut lines = fields!(Settings, "smartswap_settings":
        struct_size device memory_bytes host_memory_bytes min_block_bytes compute_stream prefer
        strategy config_file record_file);
    lines.extend(fields!(Counter, "smartswap_bytes": current peak));
    lines.extend(fields!(Stats, "smartswap_stats":
        struct_size stage steps limit_bytes requested allocated active reserved pinned_host
        used_host allocations swapped_out_bytes swapped_in_bytes recomputed_ops kept_bytes misses
        rescues recalls host_waits stall_us last_step_us plan steps_by_stage
        memory_calls last_memory_calls branches unlimited_us search_steps
        reported_steps));
    lines.extend(fields!(Touched, "smartswap_touched": address access));
    lines.extend(fields!(Replay, "smartswap_replay":
        run release data outputs output_count inputs input_count));
    for (name, value) in [
        ("SMARTSWAP_OK", 0),
        ("SMARTSWAP_OUT_OF_MEMORY", 1),
        ("SMARTSWAP_USAGE", 2),
        ("SMARTSWAP_SETTINGS", 3),
        ("SMARTSWAP_DEVICE", 4),
        ("SMARTSWAP_BROKEN", 5),
        ("SMARTSWAP_READ", 0),
        ("SMARTSWAP_WRITE", 1),
        ("SMARTSWAP_READ_WRITE", 2),
        ("SMARTSWAP_UNKNOWN", 3),
        ("SMARTSWAP_OUTPUT", 4),
        ("SMARTSWAP_UNUSED", 0),
        ("SMARTSWAP_PLANNED", 1),
        ("SMARTSWAP_RECORDED", 2),
        ("SMARTSWAP_RECORDED_FOR_SIZES", 3),
        ("SMARTSWAP_STEP", 0),
        ("SMARTSWAP_ASIDE", 1),
        ("SMARTSWAP_ABI_VERSION", 6),
        ("SMARTSWAP_FIGURES", FIGURES as i32),
        ("SMARTSWAP_RECORD", 0),
        ("SMARTSWAP_WAIT", 1),
        ("SMARTSWAP_DESTROY_EVENT", 2),
        ("SMARTSWAP_SYNCHRONIZE_EVENT", 3),
        ("SMARTSWAP_SYNCHRONIZE_STREAM", 4),
        ("SMARTSWAP_SYNCHRONIZE_DEVICE", 5),
        ("SMARTSWAP_LATER", LATER),
        ("SMARTSWAP_NEXT_STEP", NEXT_STEP),
        ("SMARTSWAP_AT_ONCE", AT_ONCE),
        ("SMARTSWAP_TIMES", TIMES),
    ] {
        lines.push(format!("{name} {value}"));
    }
    // Enums are passed as what C makes of them.
    lines.push("smartswap_part 4".to_owned());
    lines.push("smartswap_access 4".to_owned());
    lines.push("smartswap_round 4".to_owned());
    lines
}

/// A program that prints the same lines from the header.
fn program() -> String {
    let mut text = "#include <stddef.h>\n#include <stdio.h>\n#include \"smartswap.h\"\n\
                    int main(void) {\n"
        .to_owned();
    for line in ours() {
        let (name, _) = line.split_once(' ').expect("a name and a value");
        let value = match name.split_once('.') {
            Some((of, field)) => format!("offsetof({of}, {field})"),
            None if name.starts_with("SMARTSWAP_") => name.to_owned(),
            None => format!("sizeof({name})"),
        };
        text += &format!("  printf(\"{name} %d\\n\", (int)({value}));\n");
    }
    text + "  return 0;\n}\n"
}

#[test]
fn structs_and_constants_are_those_of_the_header() {
    for (compiler, extension, standard) in [("cc", "c", "-std=c99"), ("c++", "cpp", "-std=c++17")] {
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join(format!("layout.{extension}"));
        std::fs::write(&source, program()).expect("written");
        let Some(program) = compile(compiler, &[standard, "-pedantic"], &source, folder.path())
        else {
            return;
        };
        let printed = run(&program);
        assert_eq!(printed.lines().collect::<Vec<_>>(), ours(), "{compiler}");
    }
    // And the library's own are as large.
    assert_eq!(default_settings().struct_size as usize, size_of::<Settings>());
}
