//! Our own keys: each changes what it says.

use adaptive::{
    Budget, DeviceName, GenerateConfig, JointConfig, LoopConfig, OptimizerState, Prefer, Settings,
    Strategy, Treatment,
};

use crate::{parse, persistent, plan};

fn looped(text: &str) -> LoopConfig {
    parse(text).loop_config(LoopConfig::default())
}

fn joint(text: &str) -> JointConfig {
    parse(text).joint_config(JointConfig::default())
}

#[test]
fn nothing_set_changes_nothing() {
    let base = LoopConfig { slow_ratio: 3.0, limit_bytes: 77, ..LoopConfig::default() };
    assert_eq!(Settings::default().loop_config(base), base);
    let generate = GenerateConfig { effort: 5, min_block_bytes: 9, ..GenerateConfig::default() };
    let base = JointConfig { strategy: Strategy::Swap, generate, ..JointConfig::default() };
    assert_eq!(Settings::default().joint_config(base), base);
    let base = Settings::default().machine_of(5);
    assert_eq!((base.limit_bytes, Settings::default().machine(base)), (5, base));
    assert_eq!(Settings::default().budget(), None);
    assert_eq!(parse(""), Settings::default());
}

#[test]
fn memory_is_a_size_or_a_share() {
    assert_eq!(parse("memory = \"24GiB\"").budget(), Some(Budget::Bytes(24 << 30)));
    assert_eq!(parse("memory = 4096").budget(), Some(Budget::Bytes(4096)));
    let share = parse("memory = \"62.5%\"").budget().unwrap();
    assert_eq!((share, share.of_peak(800)), (Budget::Percent(62.5), 500));
    // What ours says goes before what theirs says.
    let both = parse("memory = 7\n[smartswap]\ntarget_mode = true\n");
    assert_eq!(both.budget(), Some(Budget::Bytes(7)));
}

#[test]
fn the_machine_is_as_described() {
    let text = "host_memory = \"1GiB\"\nlink_out = \"2GB/s\"\nlink_in = 3_000_000_000\n\
                link_both = \"1GB/s\"\n";
    let machine = parse(text).machine_of(5);
    assert_eq!((machine.limit_bytes, machine.host_limit_bytes), (5, 1 << 30));
    let link = machine.link;
    let rates = [link.out_bytes_per_us, link.in_bytes_per_us, link.both_bytes_per_us];
    assert_eq!(rates, [2000.0, 3000.0, 1000.0]);
    // A slow link and little host memory change plans.
    let [fast, slow, small] =
        ["", "link_out = \"2GB/s\"\nlink_in = \"2GB/s\"", "host_memory = \"300MiB\""]
            .map(|text| plan(&format!("strategy = \"swap\"\n{text}"), 80).simulation);
    assert!(slow.step_us > fast.step_us);
    assert!(fast.host_bytes_peak > 300 << 20 && small.host_bytes_peak <= 300 << 20);
}

#[test]
fn the_reserve_stays_unused() {
    let used = |text: &str| plan(text, 80).simulation.resident_bytes_peak;
    assert!(used("reserve = \"300MiB\"") + (200 << 20) < used(""));
}

#[test]
fn smaller_blocks_than_min_size_stay() {
    let least = |text: &str| {
        let made = plan(text, 80);
        let away = made.decisions.iter().filter(|one| one.treatment != Treatment::Keep);
        away.map(|one| one.size_bytes).min().unwrap()
    };
    assert!(least("strategy = \"swap\"\nmin_size = \"1MiB\"") <= 64 << 20);
    assert!(least("strategy = \"swap\"\nmin_size = \"65MiB\"") >= 65 << 20);
}

#[test]
fn the_bucket_bounds_what_a_step_moves() {
    let moved = |text: &str| {
        let made = plan(&format!("strategy = \"swap\"\n{text}"), 80);
        let away = made.decisions.iter().filter(|one| one.treatment == Treatment::Swap);
        away.map(|one| one.size_bytes).sum::<u64>()
    };
    assert!(moved("") > 130 << 20);
    assert!((1..=130 << 20).contains(&moved("bucket = \"130MiB\"")));
    assert_eq!(moved("bucket = 0"), moved(""));
}

#[test]
fn the_strategy_is_the_one_named() {
    for (name, strategy) in [
        ("keep", Strategy::Keep),
        ("swap", Strategy::Swap),
        ("recompute", Strategy::Recompute),
        ("joint", Strategy::Joint),
        ("smartswap", Strategy::SmartSwap),
    ] {
        assert_eq!(joint(&format!("strategy = \"{name}\"")).strategy, strategy);
    }
}

#[test]
fn what_is_preferred_leaves_first() {
    let moved = |text: &str, percent| persistent(&format!("strategy = \"swap\"\n{text}"), percent);
    assert_eq!(moved("prefer = \"performance\"", 99), 0);
    assert!(moved("prefer = \"memory\"\nmin_size = \"300MiB\"", 95) > 0);
    // Where activations cannot do, everything may leave.
    assert!(moved("prefer = \"performance\"", 50) > 0);
    let prefer = |text: &str| parse(text).prefer();
    assert_eq!(prefer("prefer = \"memory\""), Some(Prefer::Memory));
    let both = "prefer = \"performance\"\nsmartswap.policy_pref = \"memory\"";
    assert_eq!(prefer(both), Some(Prefer::Performance));
}

#[test]
fn counts_of_the_loop_and_the_planner_are_as_written() {
    assert_eq!(joint("effort = 31").generate.effort, 31);
    let text = "warmup_steps = 4\nsearch_steps = 6\nslow_ratio = 1.75\nslow_steps = 7\n\
                failed_searches = 0\ncalm_steps = 9\ncached_signatures = 10\nunmap_every = 11\n";
    let expect = LoopConfig {
        warmup_steps: 4,
        search_steps: 6,
        slow_ratio: 1.75,
        slow_steps: 7,
        failed_searches: 0,
        calm_steps: 9,
        cached_signatures: 10,
        unmap_every_steps: 11,
        ..LoopConfig::default()
    };
    assert_eq!(looped(text), expect);
    let both = format!("{text}[smartswap]\nwarmup_step = 2\nstable_step = 9\n");
    assert_eq!(looped(&both), expect, "ours goes before theirs");
}

#[test]
fn tables_of_commands_hold_what_they_take() {
    let text = "json = true\n[train]\ndevice = \"acl:1\"\nsteps = 1\nlayers = 2\nhidden = 3\n\
                heads = 4\nseq = 5\nbatch = 6\nuntied = true\nseed = 7\ntext = \"a\"\n\
                optimizer_state = \"device\"\nplan = \"b\"\nverify = true\nlink = \"1GiB/s\"\n\
                out = \"c\"\n[plan]\nout = \"d\"\n[simulate]\nplan = \"e\"\ntimeline = \"f\"\n\
                report = \"g\"\nlanes = \"i\"\n[compare]\nplot = \"h\"\n";
    let settings = parse(text);
    let train = &settings.train;
    assert_eq!(train.device, Some(DeviceName::Acl(1)));
    let sizes = [train.steps, train.layers, train.hidden, train.heads, train.seq, train.batch];
    assert_eq!(sizes, [1, 2, 3, 4, 5, 6].map(Some));
    assert_eq!((train.untied, train.verify, settings.json), (Some(true), Some(true), Some(true)));
    assert_eq!((train.seed, train.link), (Some(7), Some(1 << 30)));
    assert_eq!(train.optimizer_state, Some(OptimizerState::Device));
    let (simulate, plan) = (&settings.simulate, &settings.plan);
    let paths = [
        &train.text,
        &train.plan,
        &train.out,
        &plan.out,
        &simulate.plan,
        &simulate.timeline,
        &simulate.report,
        &settings.compare.plot,
        &simulate.lanes,
    ];
    let names = paths.map(|path| path.as_deref().and_then(std::path::Path::to_str).unwrap());
    assert_eq!(names, ["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
}
