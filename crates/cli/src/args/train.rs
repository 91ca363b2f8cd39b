//! Flags of the command that trains, and what they and the file of settings come to.

use std::path::PathBuf;

use adaptive::{Budget, DeviceName, OptimizerState, PrintLevel, Settings, Strategy, TrainSettings};
use clap::Args;

use super::config::{self, ConfigArgs, put, raise};
use super::step::named;
use super::{memory, positive, rate};
use crate::gpt::shape::{BYTE_VOCAB, Head, Shape, ShapeError};

#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    /// Cap on device memory: 24GiB, 512MiB, plain bytes or a share of what is needed, such as 60%
    /// [default: half of what is needed]
    #[arg(long, value_name = "SIZE|PERCENT%", value_parser = memory)]
    memory: Option<Budget>,
    /// Device: host, acl or acl:1. The operators are functions of the host, so it must be one whose
    /// memory the host can address [default: host]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceName>,
    /// Steps to train [default: 20]
    #[arg(long, value_name = "N", value_parser = positive)]
    steps: Option<u64>,
    #[command(flatten)]
    model: ModelArgs,
    /// Seed of weights and batches [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Text to train on, taken byte by byte [default: sentences of a small grammar]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// How blocks may leave the device [default: joint]
    #[arg(long, value_name = "HOW", value_parser = named::<Strategy>())]
    strategy: Option<Strategy>,
    /// Whether the plan may move the optimizer's moments [default: swap]
    #[arg(long, value_name = "WHERE", value_parser = named::<OptimizerState>())]
    optimizer_state: Option<OptimizerState>,
    /// Start with the plan of an earlier run, its plan.json, instead of a search
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Compare each loss and the final weights with those of the uncapped run, bit for bit
    #[arg(long)]
    verify: bool,
    /// Speed of the link between the software device and the host, each way; that of another
    /// device is measured [default: 512MiB/s]
    #[arg(long, value_name = "SIZE/s", value_parser = rate)]
    link: Option<u64>,
    /// Folder for plan.json, trace.json, timeline.json and report.html
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Sizes of the model.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ModelArgs {
    /// Transformer layers [default: 6]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Width of the residual stream [default: 192]
    #[arg(long, value_name = "N")]
    hidden: Option<usize>,
    /// Attention heads; they divide the hidden size [default: 6]
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Tokens in a sequence [default: 128]
    #[arg(long, value_name = "N")]
    seq: Option<usize>,
    /// Sequences in a batch [default: 16]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Give the head a weight of its own instead of the token table
    #[arg(long)]
    untied: bool,
}

impl ModelArgs {
    /// The shape, if a model can have it. What no flag says, the file says.
    pub(crate) fn shape(&self, file: &TrainSettings) -> Result<Shape, ShapeError> {
        let size = |flag: Option<usize>, file: Option<u64>, default: usize| {
            let file = file.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
            flag.or(file).unwrap_or(default)
        };
        let untied = self.untied || file.untied.unwrap_or(false);
        let shape = Shape {
            layers: size(self.layers, file.layers, 6),
            hidden: size(self.hidden, file.hidden, 192),
            heads: size(self.heads, file.heads, 6),
            seq: size(self.seq, file.seq, 128),
            batch: size(self.batch, file.batch, 16),
            vocab: BYTE_VOCAB,
            head: if untied { Head::Untied } else { Head::Tied },
        };
        shape.validate()?;
        Ok(shape)
    }
}

/// What is to be trained, and how.
#[derive(Debug)]
pub(crate) struct TrainOptions {
    /// The cap; half of what is needed if there is none.
    pub(crate) memory: Option<Budget>,
    pub(crate) device: DeviceName,
    pub(crate) steps: u64,
    pub(crate) shape: Shape,
    pub(crate) seed: u64,
    pub(crate) text: Option<PathBuf>,
    pub(crate) strategy: Strategy,
    pub(crate) optimizer_state: OptimizerState,
    pub(crate) plan: Option<PathBuf>,
    pub(crate) verify: bool,
    pub(crate) link: u64,
    /// Folder for all files.
    pub(crate) out: Option<PathBuf>,
    /// Folder for the plan alone.
    pub(crate) save: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) print_level: PrintLevel,
    /// Settings of the loop and the planner.
    pub(crate) settings: Settings,
}

impl TrainArgs {
    /// What the flags and the file come to.
    ///
    /// # Errors
    /// One line that says what is wrong and how to fix it.
    pub(crate) fn options(&self) -> anyhow::Result<TrainOptions> {
        let mut settings = self.config.load()?;
        put(&mut settings.memory, &self.memory);
        put(&mut settings.strategy, &self.strategy);
        put(&mut settings.train.optimizer_state, &self.optimizer_state);
        put(&mut settings.train.device, &self.device);
        put(&mut settings.train.steps, &self.steps);
        put(&mut settings.train.seed, &self.seed);
        put(&mut settings.train.text, &self.text);
        put(&mut settings.train.plan, &self.plan);
        put(&mut settings.train.link, &self.link);
        put(&mut settings.train.out, &self.out);
        raise(&mut settings.train.verify, self.verify);
        let train = &settings.train;
        Ok(TrainOptions {
            memory: settings.budget(),
            device: train.device.unwrap_or(DeviceName::Host),
            steps: train.steps.unwrap_or(20),
            shape: self.model.shape(train)?,
            seed: train.seed.unwrap_or(1),
            text: train.text.clone(),
            strategy: settings.strategy.unwrap_or_default(),
            optimizer_state: train.optimizer_state.unwrap_or(OptimizerState::Swap),
            plan: train.plan.clone(),
            verify: train.verify.unwrap_or(false),
            link: train.link.unwrap_or(512 << 20),
            out: train.out.clone(),
            save: config::save_folder(&settings).filter(|_| train.out.is_none()),
            json: config::json(&settings),
            print_level: settings.print_level(),
            settings,
        })
    }
}
