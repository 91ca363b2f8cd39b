//! vDNN in its mode for all layers: every activation that backward needs leaves after its last
//! forward use, and comes back while backward runs the layer before the one that needs it. It
//! does not ask how much memory there is.

use swap_core::Plan;

use super::{Scene, plan_of, swap};

pub(super) fn plan(scene: &Scene<'_>) -> Plan {
    let stages = &scene.stages;
    let orders = scene.activations().into_iter().flat_map(|gap| {
        let layer = stages.stage[gap.to as usize] as usize;
        let ahead = stages.start[layer.saturating_sub(1)];
        swap(&gap, i64::from(ahead))
    });
    plan_of(scene, orders.collect())
}
