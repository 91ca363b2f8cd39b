//! The AdamW optimizer: Adam with bias correction and decoupled weight decay.

/// What AdamW can be told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdamW {
    /// Step size.
    pub learning_rate: f32,
    /// How much of the first moment stays from step to step.
    pub beta_1: f32,
    /// How much of the second moment stays.
    pub beta_2: f32,
    /// Added to the second moment's root.
    pub epsilon: f32,
    /// Share of the parameter that is taken away, times the step size.
    pub weight_decay: f32,
}

impl AdamW {
    /// Updates one parameter and its moments from its gradient.
    ///
    /// `step` counts from 1. Before the first step the moments are 0.
    ///
    /// # Panics
    /// If the lengths differ or `step` is 0.
    pub fn update(
        &self,
        parameter: &mut [f32],
        first: &mut [f32],
        second: &mut [f32],
        gradient: &[f32],
        step: u64,
    ) {
        assert!(step > 0, "optimizer steps count from 1");
        let count = parameter.len();
        assert_eq!(first.len(), count, "a first moment for each parameter");
        assert_eq!(second.len(), count, "a second moment for each parameter");
        assert_eq!(gradient.len(), count, "a gradient for each parameter");
        let step_size = self.learning_rate / unbias(self.beta_1, step);
        let second_factor = 1.0 / unbias(self.beta_2, step);
        let keep = 1.0 - self.learning_rate * self.weight_decay;
        let moments = first.iter_mut().zip(second).zip(gradient);
        for (value, ((first, second), &gradient)) in parameter.iter_mut().zip(moments) {
            *first = self.beta_1 * *first + (1.0 - self.beta_1) * gradient;
            *second = self.beta_2 * *second + (1.0 - self.beta_2) * gradient * gradient;
            let root = (*second * second_factor).sqrt();
            *value = *value * keep - step_size * *first / (root + self.epsilon);
        }
    }
}

/// `1 - beta^step`: how far a moment that began at 0 has come.
fn unbias(beta: f32, step: u64) -> f32 {
    // By squaring: the platform's power function need not be the same everywhere.
    let (mut power, mut factor, mut exponent) = (1.0_f64, f64::from(beta), step);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= factor;
        }
        factor *= factor;
        exponent >>= 1;
    }
    (1.0 - power) as f32
}
