//! Promise: where the link rests after bytes were written, and is too slow for them when they have
//! to leave, they are on the host by then.

use policy::{GenerateConfig, Generator, Start, Trace};

#[path = "peak/step.rs"]
mod peak;

use peak::{COPY_US, WEIGHT_BYTES};

/// A weight is used, has to make room at once, and is used again; after that comes a long rest.
fn step() -> Trace {
    let (mut builder, weight) = peak::begin_step();
    for (name, device_us, updates) in
        [("backward", 1.5, false), ("optimizer", 0.1, true), ("evaluation", 2.5, false)]
    {
        builder.begin(name, device_us * COPY_US, false);
        if updates {
            builder.update(weight);
        }
        builder.end();
    }
    builder.finish()
}

#[test]
fn bytes_leave_while_the_link_rests_if_it_is_busy_later() {
    let trace = step();
    let machine = peak::machine();
    let generator = Generator::new(&trace, &machine);
    let config = GenerateConfig::default();
    let start = Start { config, options: &[], from_effort: 1 };
    let [quick, searched] = [1, 2].map(|effort| generator.best(&[start], effort, 0.0));

    for made in [&quick, &searched] {
        assert!(made.infeasible.is_none() && made.simulation.went_to_plan(), "{made:?}");
        assert_eq!(made.simulation.swapped_out_bytes, WEIGHT_BYTES);
        // After the early copy it takes its own memory back, which nobody else wanted.
        assert_eq!(made.simulation.swapped_in_bytes, WEIGHT_BYTES);
    }
    assert!(quick.added_us() > 0.9 * COPY_US, "{:?}", quick.simulation);
    assert!(searched.added_us() < 1e-6, "{:?}", searched.simulation);
}
