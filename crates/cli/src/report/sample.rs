//! Made-up runs for tests, with figures that are easy to recognise in what is drawn from them.

use adaptive::Treatment;

use super::run::{
    Away, Decision, LaneSpan, MemoryCurves, Mode, Model, Run, Step, WorkKind, spread_over_ops,
};

const MIB: u64 = 1 << 20;
const LAYERS: u32 = 12;
/// Name and device time in microseconds of the ops of a layer.
const LAYER_OPS: [(&str, f64); 8] = [
    ("ln1", 60.0),
    ("attn.qkv", 420.0),
    ("attn.core", 510.0),
    ("attn.proj", 170.0),
    ("ln2", 60.0),
    ("mlp.up", 500.0),
    ("mlp.gelu", 130.0),
    ("mlp.down", 480.0),
];

/// A run that trains in 48 % of the memory with a joint plan.
pub(super) fn swapping() -> Run {
    let (spans, memory) = one_step();
    Run {
        model: Model {
            layers: u64::from(LAYERS),
            hidden: 384,
            heads: 6,
            seq: 256,
            batch: 8,
            parameters: 21_483_264,
        },
        strategy: "joint".to_owned(),
        seed: 7,
        command_line: "smartswap train --memory 430MiB --verify --out out".to_owned(),
        memory_limit_bytes: 430 * MIB,
        peak_device_bytes: 412 * MIB,
        peak_uncapped_bytes: Some(859 * MIB),
        step_us_uncapped: Some(79_400.0),
        bit_identical: Some(true),
        steps: steps(3, 5, 16),
        memory,
        spans,
        decisions: decisions(),
    }
}

/// A run that fits: nothing moves and nothing is compared.
pub(super) fn keeping() -> Run {
    let mut run = swapping();
    run.strategy = "keep".to_owned();
    run.memory_limit_bytes = 900 * MIB;
    run.peak_device_bytes = 859 * MIB;
    run.bit_identical = None;
    run.memory.planned = run.memory.uncapped.clone();
    run.spans.retain(|span| span.kind == WorkKind::Op);
    for step in &mut run.steps {
        *step = Step { swapped_out_bytes: 0, swapped_in_bytes: 0, recomputed_ops: 0, ..*step };
    }
    for decision in &mut run.decisions {
        decision.treatment = Treatment::Keep;
        decision.away = None;
    }
    run
}

/// A run of 3,000 steps that searches twice.
pub(super) fn long() -> Run {
    let mut run = swapping();
    run.steps = steps(3, 37, 1_460);
    run.steps.extend(steps(0, 40, 1_460));
    for (number, step) in (0..).zip(&mut run.steps) {
        step.step = number;
        step.loss = step.loss.map(|_| 2.0 + 3.5 / (1.0 + number as f32 / 90.0) + ripple(number));
    }
    run
}

fn ripple(number: u64) -> f32 {
    (number * 7_919 % 101) as f32 / 600.0
}

fn steps(warm_up: u64, search: u64, stable: u64) -> Vec<Step> {
    let kinds = [
        (Mode::WarmUp, warm_up, 131_000.0, 230, 0, 38_200.0),
        (Mode::SearchPolicy, search, 97_600.0, 210, 12, 8_410.0),
        (Mode::Stable, stable, 84_200.0, 205, 12, 410.0),
    ];
    let mut steps = Vec::new();
    for (mode, count, step_us, moved_mib, recomputed_ops, stall_us) in kinds {
        for position in 0..count {
            // Spread evenly on both sides, so that the median is known.
            let rank = (position * 7 % count) as f64 - (count - 1) as f64 / 2.0;
            let step_us = step_us + rank / count as f64 * step_us / 32.0;
            let number = steps.len() as u64;
            let (misses, rescues) = match mode {
                Mode::WarmUp => (7, 10),
                Mode::SearchPolicy => (u64::from(position < 2), u64::from(position < 3)),
                Mode::Stable => (0, 0),
            };
            steps.push(Step {
                step: number,
                mode,
                loss: Some(5.5 - number as f32 * 0.07 + ripple(number)),
                device_us: step_us * 0.98,
                step_us,
                held_bytes_peak: 412 * MIB,
                swapped_out_bytes: moved_mib * MIB,
                swapped_in_bytes: moved_mib * MIB,
                recomputed_ops,
                stall_us,
                misses,
                rescues,
            });
        }
    }
    steps
}

fn span(kind: WorkKind, name: &str, start_us: f64, length_us: f64, size_bytes: u64) -> LaneSpan {
    LaneSpan { kind, name: name.to_owned(), start_us, end_us: start_us + length_us, size_bytes }
}

/// Forward and backward of all layers, then the optimizer, with copies beside them.
fn one_step() -> (Vec<LaneSpan>, MemoryCurves) {
    let mut spans = Vec::new();
    let (mut now_us, mut out_free_us, mut in_free_us) = (0.0_f64, 0.0_f64, 0.0_f64);
    let mut op_start_us = Vec::new();
    let (mut uncapped, mut planned) = (Vec::new(), Vec::new());
    let mut resident = 232 * MIB;
    let mut sample = |op: u32, resident: u64| {
        uncapped.push((op, resident));
        planned.push((op, resident.min((412 - u64::from(op) * 5 % 23) * MIB)));
    };
    for half in ["forward", "backward"] {
        for position in 0..LAYERS {
            let is_forward = half == "forward";
            let layer = if is_forward { position } else { LAYERS - 1 - position };
            for place in 0..LAYER_OPS.len() {
                let (name, length_us) =
                    LAYER_OPS[if is_forward { place } else { LAYER_OPS.len() - 1 - place }];
                let name = format!("layer{layer}.{name}");
                if !is_forward && name.ends_with("gelu") {
                    spans.push(span(WorkKind::Replay, &name, now_us, 130.0, 0));
                    now_us += 130.0;
                }
                let length_us = if is_forward { length_us } else { length_us * 1.72 };
                op_start_us.push(now_us);
                let op = op_start_us.len() as u32 - 1;
                sample(op, resident + 9 * MIB);
                let moved = (6 + u64::from(op % 3) * 4) * MIB;
                if is_forward && op % 4 == 3 && layer < 9 {
                    let start_us = out_free_us.max(now_us + length_us);
                    spans.push(span(WorkKind::SwapOut, &name, start_us, 760.0, moved));
                    out_free_us = start_us + 760.0;
                } else if !is_forward && op % 4 == 1 && layer < 10 {
                    let start_us = in_free_us.max(now_us);
                    spans.push(span(WorkKind::SwapIn, &name, start_us, 740.0, moved));
                    in_free_us = start_us + 740.0;
                }
                let grown = resident + 6 * MIB + MIB * u64::from(op % 2);
                resident = if is_forward { grown } else { 2 * resident - grown };
                spans.push(span(WorkKind::Op, &name, now_us, length_us, 0));
                now_us += length_us;
                sample(op, resident);
            }
        }
        if half == "forward" {
            op_start_us.push(now_us);
            sample(op_start_us.len() as u32 - 1, 859 * MIB);
            spans.push(span(WorkKind::Op, "head.logits", now_us, 3_800.0, 0));
            now_us += 3_800.0;
        }
    }
    op_start_us.push(now_us);
    sample(op_start_us.len() as u32 - 1, resident);
    spans.push(span(WorkKind::Op, "adamw", now_us, 3_700.0, 0));
    now_us += 3_700.0;
    let memory = MemoryCurves {
        uncapped: spread_over_ops(&uncapped, &op_start_us, now_us),
        planned: spread_over_ops(&planned, &op_start_us, now_us),
    };
    (spans, memory)
}

fn decisions() -> Vec<Decision> {
    let mut decisions = Vec::new();
    for layer in 0..LAYERS {
        for (place, (name, _)) in LAYER_OPS.iter().enumerate() {
            let treatment = match place {
                6 => Treatment::Recompute,
                1 | 3 | 5 if layer < 10 => Treatment::Swap,
                _ => Treatment::Keep,
            };
            let away = (treatment != Treatment::Keep).then(|| Away {
                from_op: format!("forward layer{layer}.{name}"),
                until_op: format!("backward layer{layer}.{name}"),
            });
            let reason = match treatment {
                Treatment::Keep if layer >= 10 => "its gap is shorter than the copies out and back",
                Treatment::Keep => "the cap is met without it, and moving it would add time",
                Treatment::Swap => "away over the peak; both copies hide behind compute",
                Treatment::Recompute => {
                    "running the op again takes less time than the link has left"
                }
            };
            decisions.push(Decision {
                block: format!("layer{layer}.{name}.out"),
                size_bytes: [3, 9, 3, 3, 3, 12, 12, 3][place] * MIB,
                treatment,
                away,
                reason: reason.to_owned(),
                added_us: if treatment == Treatment::Recompute { 130.0 } else { 0.0 },
            });
        }
    }
    decisions.sort_by_key(|decision| std::cmp::Reverse(decision.size_bytes));
    decisions
}
