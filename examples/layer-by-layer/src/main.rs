//! Trains a small network whose tensors do not fit on the device together, with `vmem` alone.
//!
//! Weights, momenta and activations are swap tensors: each layer's are swapped in before it runs,
//! and out behind it. The samples are in swapped memory, which the device reads in host memory.
//! The layers above `vmem` would find out by themselves what to move when; here it is written by
//! hand. `cargo run -p layer-by-layer` trains so under a cap, and without swapping, and
//! compares.

use std::error::Error;

use vmem::devices::{HostConfig, HostDriver, pattern_word};
use vmem::{
    Access, AccessMode, ArenaConfig, DeviceMemory, Dtype, HostFunction, Operands, Place,
    PoolConfig, SwapTensor, TensorDevice,
};

const LAYERS: usize = 8;
const WIDTH: usize = 128;
const SAMPLES: usize = 128;
const STEPS: usize = 24;
const RATE: f32 = 4.0;
const MOMENTUM: f32 = 0.8;
/// A tensor's bytes: all have the same size, which is that of a chunk.
const TENSOR_BYTES: u64 = 64 << 10;
/// Room for the six tensors of one layer's update, where all together are 27.
const CAP_BYTES: u64 = 6 * TENSOR_BYTES;
/// More than all of them.
const ROOMY_BYTES: u64 = 64 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a training came to.
#[derive(Debug)]
struct Trained {
    losses: Vec<f32>,
    /// Device memory at the highest, as the device counts it.
    peak_bytes: u64,
}

/// The residual network `x + tanh(x W)`, layer after layer, and its optimizer's state.
struct Network {
    device: TensorDevice,
    weights: Vec<SwapTensor>,
    momenta: Vec<SwapTensor>,
    /// Whether tensors leave the device while nobody needs them.
    swaps: bool,
}

impl Network {
    fn new(device: TensorDevice, swaps: bool) -> Outcome<Network> {
        let shape = [WIDTH, WIDTH];
        let (weights, momenta) = (Vec::new(), Vec::new());
        let mut network = Network { device, weights, momenta, swaps };
        for layer in 0..LAYERS {
            let small = numbers(layer as u64, WIDTH * WIDTH, 0.05);
            let weight = network.device.from_slice(Place::Device, &shape, &small)?;
            network.leave(&weight)?;
            let momentum = network.device.empty(&shape, Dtype::F32)?;
            momentum.zero_()?;
            network.leave(&momentum)?;
            network.weights.push(weight);
            network.momenta.push(momentum);
        }
        Ok(network)
    }

    /// One step of gradient descent. Returns the mean squared error before it.
    fn step(&self, samples: &SwapTensor, targets: &SwapTensor) -> Outcome<f32> {
        // The first layer reads the samples where they are: in host memory.
        let mut inputs = vec![samples.detach()];
        for weight in &self.weights {
            let input = inputs.last().expect("there are samples");
            here(&[input, weight])?;
            let output = self.empty()?;
            self.run("layer", &[input, weight], &[&output], |at| {
                forward(at.read(0), at.read(1), at.write(2));
            })?;
            self.leave(weight)?;
            self.leave(input)?;
            inputs.push(output);
        }
        let output = inputs.pop().expect("there are layers");
        let mut slope = self.empty()?;
        self.run("error", &[&output, targets], &[&slope], |at| {
            difference(at.read(0), at.read(1), at.write(2));
        })?;
        let errors = slope.to_vec::<f32>()?;
        self.leave(&output)?;
        let mut output = output;
        for (layer, input) in inputs.into_iter().enumerate().rev() {
            let (weight, momentum) = (&self.weights[layer], &self.momenta[layer]);
            here(&[&input, &output, weight, momentum])?;
            let below = self.empty()?;
            let reads = [&slope, &input, &output];
            self.run("update", &reads, &[weight, momentum, &below], |at| {
                let (slope, input, output) = (at.read(0), at.read(1), at.read(2));
                backward(slope, input, output, [at.write(3), at.write(4), at.write(5)]);
            })?;
            self.leave(weight)?;
            self.leave(momentum)?;
            self.leave(&input)?;
            (slope, output) = (below, input);
        }
        Ok(errors.iter().map(|error| error * error).sum::<f32>() / errors.len() as f32)
    }

    /// Nobody needs the tensor for a while.
    fn leave(&self, tensor: &SwapTensor) -> Outcome<()> {
        if self.swaps {
            tensor.swap_out()?;
        }
        Ok(())
    }

    fn empty(&self) -> Outcome<SwapTensor> {
        Ok(self.device.empty(&[SAMPLES, WIDTH], Dtype::F32)?)
    }

    /// Submits a kernel over some tensors: those that it reads, then those that it changes.
    fn run(
        &self,
        name: &'static str,
        reads: &[&SwapTensor],
        writes: &[&SwapTensor],
        body: impl FnOnce(&Operands<'_>) + Send + 'static,
    ) -> Outcome<()> {
        let access = |tensor: &&SwapTensor, mode| {
            let start = tensor.address().ok_or("a kernel's tensor is away")?;
            Ok(Access { start, size_bytes: tensor.size_bytes() as u64, mode })
        };
        let reads = reads.iter().map(|tensor| (tensor, AccessMode::Read));
        let used = reads.chain(writes.iter().map(|tensor| (tensor, AccessMode::ReadWrite)));
        let accesses: Outcome<Vec<Access>> =
            used.clone().map(|(tensor, mode)| access(tensor, mode)).collect();
        let body = Box::new(body);
        let function = HostFunction { name, accesses: accesses?, cost_us: 100.0, body };
        let stream = self.device.stream();
        // SAFETY: the tensors are whole, different and where the device reaches them; the stream
        // is that of all other work on them, and the use is recorded below, before any can move.
        unsafe { self.device.driver().launch_host(function, stream) }?;
        used.for_each(|(tensor, _)| tensor.record_use(stream));
        Ok(())
    }
}

/// Brings back what is away.
fn here(tensors: &[&SwapTensor]) -> Outcome<()> {
    for tensor in tensors {
        tensor.swap_in()?;
    }
    Ok(())
}

/// Repeatable numbers between `-size` and `size`.
fn numbers(seed: u64, count: usize, size: f32) -> Vec<f32> {
    let number = |index| (pattern_word(seed, index) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..count as u64).map(|index| number(index) * size).collect()
}

fn forward(input: &[f32], weight: &[f32], output: &mut [f32]) {
    for (input, output) in input.chunks(WIDTH).zip(output.chunks_mut(WIDTH)) {
        output.fill(0.0);
        for (x, weight) in input.iter().zip(weight.chunks(WIDTH)) {
            output.iter_mut().zip(weight).for_each(|(sum, w)| *sum += x * w);
        }
        output.iter_mut().zip(input).for_each(|(sum, x)| *sum = x + sum.tanh());
    }
}

fn difference(output: &[f32], targets: &[f32], slope: &mut [f32]) {
    for ((slope, output), target) in slope.iter_mut().zip(output).zip(targets) {
        *slope = output - target;
    }
}

/// The slope at the layer's input, by the weights as they were, and the weights' update.
fn backward(
    slope: &[f32],
    input: &[f32],
    output: &[f32],
    [weight, momentum, below]: [&mut [f32]; 3],
) {
    let tanh_slope = |at: usize| slope[at] * (1.0 - (output[at] - input[at]).powi(2));
    let inner: Vec<f32> = (0..slope.len()).map(tanh_slope).collect();
    for (sample, inner) in inner.chunks(WIDTH).enumerate() {
        for (at, weight) in weight.chunks(WIDTH).enumerate() {
            let sum: f32 = inner.iter().zip(weight).map(|(slope, w)| slope * w).sum();
            below[sample * WIDTH + at] = slope[sample * WIDTH + at] + sum;
        }
    }
    momentum.iter_mut().for_each(|m| *m *= MOMENTUM);
    let scale = RATE / (SAMPLES * WIDTH) as f32;
    for (input, inner) in input.chunks(WIDTH).zip(inner.chunks(WIDTH)) {
        for (x, momentum) in input.iter().zip(momentum.chunks_mut(WIDTH)) {
            momentum.iter_mut().zip(inner).for_each(|(m, slope)| *m += scale * x * slope);
        }
    }
    weight.iter_mut().zip(momentum).for_each(|(w, m)| *w -= *m);
}

/// Trains on a software device that has this much memory and no more.
fn train(limit_bytes: u64, swaps: bool) -> Outcome<Trained> {
    let driver = HostDriver::new(HostConfig {
        granularity_bytes: TENSOR_BYTES,
        ..HostConfig::threads(limit_bytes)
    })?;
    let pool =
        PoolConfig { limit_bytes, swap_threshold_bytes: TENSOR_BYTES, segment_bytes: TENSOR_BYTES };
    let memory = DeviceMemory::new(driver.clone(), pool, ArenaConfig::new(16 << 20))?;
    let device = TensorDevice::new(memory)?;
    let samples = numbers(100, SAMPLES * WIDTH, 1.0);
    // To be learnt: each number's neighbour, halved.
    let targets: Vec<f32> =
        (0..samples.len()).map(|at| samples[at / WIDTH * WIDTH + (at + 1) % WIDTH] / 2.0).collect();
    let shape = [SAMPLES, WIDTH];
    let samples = device.from_slice(Place::Swapped, &shape, &samples)?;
    let targets = device.from_slice(Place::Swapped, &shape, &targets)?;
    let network = Network::new(device, swaps)?;
    let losses: Outcome<Vec<f32>> = (0..STEPS).map(|_| network.step(&samples, &targets)).collect();
    Ok(Trained { losses: losses?, peak_bytes: driver.ledger().chunk_bytes_peak })
}

fn main() -> Outcome<()> {
    let (free, capped) = (train(ROOMY_BYTES, false)?, train(CAP_BYTES, true)?);
    let same = free.losses == capped.losses;
    for (step, loss) in capped.losses.iter().enumerate() {
        println!("step {step:>2}  loss {loss:.4}");
    }
    println!(
        "{} KiB of device memory at the highest, {} KiB without swapping; losses {}",
        capped.peak_bytes >> 10,
        free.peak_bytes >> 10,
        if same { "are the same" } else { "DIFFER" },
    );
    if same { Ok(()) } else { Err("swapping changed the training".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapping_to_a_cap_of_six_tensors_changes_no_loss() {
        let free = train(ROOMY_BYTES, false).unwrap();
        let capped = train(CAP_BYTES, true).unwrap();
        assert_eq!(free.losses, capped.losses);
        let peaks = (capped.peak_bytes, free.peak_bytes);
        assert!(peaks.0 <= CAP_BYTES && peaks.1 > 4 * CAP_BYTES, "{peaks:?}");
        assert!(capped.losses[STEPS - 1] < capped.losses[0] / 2.0, "{:?}", capped.losses);
    }
}
