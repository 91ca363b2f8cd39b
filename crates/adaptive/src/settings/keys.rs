//! All keys: their tables, what they accept, and what holds without them.

use std::path::PathBuf;

use super::Key;
use super::kind::{
    Bucket, COUNT_MAX, Device, Flag, Kind, Level, Number, PathText, Rate, Size, SizeOrNone, Whole,
};
use super::kind::{Budget, OptimizerState, PrintLevel};
use super::read::Given;
use crate::device_name::DeviceName;
use crate::joint::{Prefer, Strategy};

/// One table of a file: the fields of a struct, as options, and the list of its keys.
macro_rules! table {
    (
        $(#[$about:meta])*
        $name:ident in $table:literal as $keys:ident {
            $( $(#[$doc:meta])* $key:ident: $kind:ty => $value:ty = $default:literal; )*
        }
        $( with { $( $(#[$more_doc:meta])* $more:ident: $more_type:ty; )* } )?
    ) => {
        $(#[$about])*
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct $name {
            $( $(#[$doc])* pub $key: Option<$value>, )*
            $( $( $(#[$more_doc])* pub $more: $more_type, )* )?
        }

        fn $keys() -> Vec<Key> {
            vec![ $( Key {
            table: $table,
            name: stringify!($key),
            accepts: <$kind as Kind>::accepts(),
            default: $default,
            }, )* ]
        }

        impl $name {
            /// Gives the key of that name its value: `None` if there is no such key, or what it
            /// accepts if the value is none of its.
            fn assign(&mut self, name: &str, given: &Given<'_>) -> Option<Result<(), String>> {
                match name {
                    $( stringify!($key) => Some(<$kind as Kind>::read(given).map(|value| {
                        self.$key = Some(value);
                    })), )*
                    _ => None,
                }
            }
        }
    };
}

/// Counts that the engine keeps in 32 bits.
type Count<const MIN: u64> = Whole<MIN, 1_000_000>;

table! {
    /// All settings of a file. Nothing is set in the default.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    /// use adaptive::{JointConfig, LoopConfig, Settings};
    ///
    /// let text = "memory = \"24GiB\"\nmin_size = \"16MiB\"\n[smartswap]\nwarmup_step = 4\n";
    /// let settings = Settings::parse(text, Path::new("run.toml"))?;
    /// let config = settings.loop_config(LoopConfig { slow_steps: 5, ..LoopConfig::default() });
    /// assert_eq!((config.warmup_steps, config.slow_steps), (4, 5));
    /// let config = settings.joint_config(JointConfig::default());
    /// assert_eq!(config.generate.min_block_bytes, 16 << 20);
    /// # Ok::<(), adaptive::SettingsError>(())
    /// ```
    Settings in "" as top {
        /// Cap on device memory.
        memory: Budget => Budget =
            "half of what is needed (`train`); none (`simulate`); else it must be given";
        /// Cap on host memory for swapped blocks.
        host_memory: Size => u64 = "no cap";
        /// Memory to leave unused below the budget.
        reserve: SizeOrNone => u64 = "0";
        /// Blocks below this stay.
        min_size: Size => u64 = "1MiB; what the device can move (`train`)";
        /// The most bytes that swaps of one step may send to the host; 0 for no such cap.
        bucket: SizeOrNone => u64 = "0";
        /// How blocks may leave the device.
        strategy: Strategy => Strategy = "joint";
        /// What may leave the device.
        prefer: Prefer => Prefer = "whichever makes the faster step";
        /// Placements that the planner tries.
        effort: Whole<1, 100_000> => u64 = "8";
        /// Speed of copies to the host, alone.
        link_out: Rate => u64 = "55.3GB/s; as the link is (`train`)";
        /// Speed of copies from the host, alone.
        link_in: Rate => u64 = "55.3GB/s; as the link is (`train`)";
        /// Speed each way while copies run both ways.
        link_both: Rate => u64 = "49.5GB/s; as the link is (`train`)";
        /// Expected steps in a row before planning.
        warmup_steps: Count<1> => u64 = "2";
        /// The most plans tried in one search.
        search_steps: Count<1> => u64 = "3";
        /// A Stable step is slow when it takes more than this times the measured best.
        slow_ratio: Number<1, false> => f64 = "1.25; 1.6 (`train`)";
        /// This many slow steps in a row start a new search.
        slow_steps: Count<1> => u64 = "2; 3 (`train`)";
        /// After this many new searches that did not last, the best plan stays for good.
        failed_searches: Count<0> => u64 = "3";
        /// A search has lasted once this many Stable steps went by undisturbed.
        calm_steps: Count<1> => u64 = "64";
        /// Kinds of steps that are remembered.
        cached_signatures: Count<1> => u64 = "16";
        /// Whether the addresses of what is away are always unmapped, so that a use that the engine
        /// was not told of fails at once; Stable steps then map what comes back.
        strict: Flag => bool = "false";
        /// Whether the order of all work is checked: the first access that nothing orders behind
        /// an earlier one of the same bytes fails, whether or not it went well. Costs host time.
        check_order: Flag => bool = "false";
        /// One Stable step in this many unmaps what is away in any case; 0 for none.
        unmap_every: Count<0> => u64 = "1024";
        /// Whether to print one JSON object and nothing else.
        json: Flag => bool = "false";
    }
    with {
        /// Keys of SmartSwap for Ascend.
        smartswap: SmartSwapSettings;
        /// What `smartswap train` alone takes.
        train: TrainSettings;
        /// What `smartswap plan` alone takes.
        plan: PlanSettings;
        /// What `smartswap simulate` alone takes.
        simulate: SimulateSettings;
        /// What `smartswap compare` alone takes.
        compare: CompareSettings;
    }
}

table! {
    /// Keys of SmartSwap for Ascend, with their names and values there.
    SmartSwapSettings in "smartswap" as smartswap {
        /// Similar steps before leaving WarmUp.
        warmup_step: Count<1> => u64 = "2";
        /// The step, counted as `warmup_step` is, at which SearchPolicy ends.
        stable_step: Count<2> => u64 = "5; 10 (`smartswap-v1`)";
        /// Steps whose number of ops differs by less than this share count as the same.
        op_diff_thresh: Number<0, true> => f64 = "0";
        /// Blocks below this stay.
        tensor_size_filter: Size => u64 = "as `min_size`; 20MiB (`smartswap-v1`, `smartswap-v2`)";
        /// How far below the budget plans aim after a step that needed rescues.
        redundant_memory: SizeOrNone => u64 = "a 32nd of the budget, doubling up to a quarter";
        /// How much lower they aim after each such step.
        adjust_memory: SizeOrNone => u64 = "as `redundant_memory`; 300MiB (`smartswap-v1`)";
        /// Whether the budget is `target_memory`, or else `reduction_memory` below the peak.
        target_mode: Flag => bool = "`memory` decides";
        /// The budget.
        target_memory: Size => u64 = "40GiB";
        /// How far below the step's own peak the budget is.
        reduction_memory: Size => u64 = "3GiB";
        /// What size counts beside coverage in the first generator's score.
        size_coverage_weight: Number<0, false> => f64 = "2";
        /// Whether the strategy `smartswap` is the second generator, or else the first.
        policy_v2: Flag => bool = "true";
        /// What may leave the device.
        policy_pref: Prefer => Prefer = "as `prefer`";
        /// The most bytes that leave with one forward stage under the second generator; nothing
        /// for all.
        swap_bucket_size: Bucket => Option<u64> = "-1";
        /// Layers in one stage of the second generator.
        num_attn_layers_per_stage: Count<1> => u64 = "1";
        /// Whether the plan is saved although no file is named for it.
        save_policy: Flag => bool = "false";
        /// How much to print.
        print_level: Level => PrintLevel = "1";
    }
}

table! {
    /// What `smartswap train` alone takes.
    TrainSettings in "train" as train {
        /// Device that runs the model.
        device: Device => DeviceName = "host";
        /// Steps to train.
        steps: Whole<1, COUNT_MAX> => u64 = "20";
        /// Transformer layers.
        layers: Whole<1, COUNT_MAX> => u64 = "6";
        /// Width of the residual stream.
        hidden: Whole<1, COUNT_MAX> => u64 = "192";
        /// Attention heads.
        heads: Whole<1, COUNT_MAX> => u64 = "6";
        /// Tokens in a sequence.
        seq: Whole<1, COUNT_MAX> => u64 = "128";
        /// Sequences in a batch.
        batch: Whole<1, COUNT_MAX> => u64 = "16";
        /// Whether the head has a weight of its own.
        untied: Flag => bool = "false";
        /// Seed of weights and batches.
        seed: Whole<0, COUNT_MAX> => u64 = "1";
        /// Text to train on.
        text: PathText => PathBuf = "sentences of a small grammar";
        /// Whether the plan may move the optimizer's moments.
        optimizer_state: OptimizerState => OptimizerState = "swap";
        /// Plan to start with.
        plan: PathText => PathBuf = "none: a search";
        /// Whether to compare with an uncapped run, bit for bit.
        verify: Flag => bool = "false";
        /// Speed of the link of the software device, each way.
        link: Rate => u64 = "512MiB/s";
        /// Folder for plan, trace, timeline and report.
        out: PathText => PathBuf = "none";
    }
}

table! {
    /// What `smartswap plan` alone takes.
    PlanSettings in "plan" as plan {
        /// File for the plan.
        out: PathText => PathBuf = "none";
    }
}

table! {
    /// What `smartswap simulate` alone takes.
    SimulateSettings in "simulate" as simulate {
        /// Plan for the step.
        plan: PathText => PathBuf = "none: everything stays";
        /// File for the timeline.
        timeline: PathText => PathBuf = "none";
        /// File for the page.
        report: PathText => PathBuf = "none";
        /// What the step took where it ran, in milliseconds.
        measured_ms: Number<0, false> => f64 = "none";
        /// The most memory of tensors that it had on the device there.
        measured_peak: Size => u64 = "none";
        /// File with what was measured there, lane by lane.
        lanes: PathText => PathBuf = "none";
        /// File with what the step would take under other caps.
        caps: PathText => PathBuf = "none";
    }
}

table! {
    /// What `smartswap compare` alone takes.
    CompareSettings in "compare" as compare {
        /// File for the drawing.
        plot: PathText => PathBuf = "none";
    }
}

/// The keys by table, in the order of the documents.
pub(super) fn all() -> Vec<Key> {
    [top(), smartswap(), train(), plan(), simulate(), compare()].concat()
}

/// The names of the tables below the top.
pub(super) const TABLE_NAMES: [&str; 5] = ["smartswap", "train", "plan", "simulate", "compare"];

/// Gives one key its value: `None` if there is no such key, or what it accepts if the value is
/// none of its.
pub(super) fn assign(
    settings: &mut Settings,
    table: &str,
    name: &str,
    given: &Given<'_>,
) -> Option<Result<(), String>> {
    match table {
        "" => settings.assign(name, given),
        "smartswap" => settings.smartswap.assign(name, given),
        "train" => settings.train.assign(name, given),
        "plan" => settings.plan.assign(name, given),
        "simulate" => settings.simulate.assign(name, given),
        "compare" => settings.compare.assign(name, given),
        _ => None,
    }
}
