//! The command line as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::decode::{Prefill, Verify};

/// Generates text with a draft and a target model, its phases visible to a profiler.
///
/// Without a command: `generate` with the shipped pair and a built-in prompt, the recorder on.
#[derive(Parser)]
#[command(name = "phasemark", version)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Generate text.
    Generate(Box<GenerateArgs>),
    /// Compare a model with its reference; the exit code is 1 when they differ.
    VerifyModel(VerifyModelArgs),
    /// Run some of a target's layers for a `generate` elsewhere.
    #[cfg(unix)]
    Shard(ShardArgs),
    /// Say what is compiled in, what would run, from where, and why not.
    Doctor(DoctorArgs),
    /// Measure decode speed against this machine's memory bandwidth.
    Bench(BenchArgs),
}

/// Which models, and on what they run.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// The target model's folder or GGUF file [default: models/pair/target, here or beside the workspace].
    #[arg(long, value_name = "DIR")]
    pub(super) model: Option<PathBuf>,
    /// What drafts: a model's folder or GGUF file, `ngram` (what followed the same words before), or `none`
    /// [default: models/pair/draft; none when --model is given alone].
    #[arg(long, value_name = "DIR|ngram|none")]
    pub(super) draft: Option<PathBuf>,
    /// Threads [default: the cores there are].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,
    /// Where the models run.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: String,
}

impl Default for ModelArgs {
    fn default() -> Self {
        ModelArgs { model: None, draft: None, threads: None, device: "cpu".into() }
    }
}

/// Over which shards the target's layers are spread.
#[derive(Args, Default)]
pub(super) struct SpreadArgs {
    /// The target's shards in order, `[BEGIN..END@]PLACE` with commas between; a place is a device,
    /// spawn:DEVICE, unix:PATH or tcp:HOST:PORT.
    #[arg(long, value_name = "LIST")]
    pub(super) shards: Option<String>,
    /// The shares of layers that shards without a range have, as in 3:5 [default: equal ones].
    #[arg(long, value_name = "WEIGHTS")]
    pub(super) split: Option<String>,
    /// Reach shards on other hosts, with nothing encrypted and nobody authenticated.
    #[arg(long)]
    pub(super) insecure: bool,
}

/// The prompt; one of these, or the built-in one.
#[derive(Args, Default)]
#[group(multiple = false)]
pub(super) struct PromptArgs {
    /// The prompt's text.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,
    /// A file that holds the prompt, `-` for standard input.
    #[arg(long, value_name = "FILE|-")]
    pub(super) prompt_file: Option<PathBuf>,
    /// The prompt's token ids, with commas between.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub(super) prompt_ids: Option<Vec<u32>>,
    /// A question, asked through the model's own chat template.
    #[arg(long, value_name = "QUESTION", allow_hyphen_values = true)]
    pub(super) chat: Option<String>,
}

/// How tokens are chosen by chance. Without any of these, none is: greedy.
#[derive(Args, Default)]
pub(super) struct SamplingArgs {
    /// Divides logits; 0 is greedy [default: 0, or 1 with --top-k, --top-p, --min-p or --seed].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(super) temperature: Option<f32>,
    /// Only the N most likely tokens; 0 keeps all.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) top_k: Option<usize>,
    /// Only the most likely tokens that reach P together; 1 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) top_p: Option<f32>,
    /// Only tokens at least P times as likely as the most likely one; 0 keeps all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(super) min_p: Option<f32>,
    /// Makes tokens that the text holds already less likely; 1 changes nothing.
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(super) repetition_penalty: Option<f32>,
    /// The same seed gives the same text [default: another one each time, which is told].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) seed: Option<u64>,
}

/// Tokens to draft a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DraftTokens {
    AtMost(usize),
    Auto,
}

impl std::str::FromStr for DraftTokens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DraftTokens::Auto),
            number => {
                number.parse().map(DraftTokens::AtMost).map_err(|error| format!("{error}, nor is it auto"))
            }
        }
    }
}

fn token_id(text: &str) -> Result<u32, std::num::ParseIntError> {
    text.trim().parse()
}

#[derive(Args)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    pub(super) models: ModelArgs,
    #[command(flatten)]
    pub(super) spread: SpreadArgs,
    #[command(flatten)]
    pub(super) prompt: PromptArgs,
    /// What a model is told about its part in a chat.
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub(super) system: Option<String>,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    /// End the text before this string; may be given several times.
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub(super) stop: Vec<String>,
    /// Not supported: a text longer than the context is refused.
    #[arg(long, hide = true)]
    pub(super) context_shift: bool,
    /// Tokens to generate at most.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 64)]
    pub(super) max_tokens: usize,
    /// Tokens to draft a round at most, or `auto` to adapt to acceptance and costs [default: 4; auto with --draft
    /// ngram].
    #[arg(long, value_name = "N|auto", allow_negative_numbers = true)]
    pub(super) draft_tokens: Option<DraftTokens>,
    /// How drafted tokens are verified.
    #[arg(long, value_enum, default_value_t)]
    pub(super) verify: VerifyArg,
    /// How the prompt is read.
    #[arg(long, value_enum, default_value_t)]
    pub(super) prefill: PrefillArg,
    /// Rows of a prefill pass [default: 1 for exact, 256 for dense].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) prefill_chunk: Option<usize>,
    /// Go on past end-of-text tokens.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    #[command(flatten)]
    pub(super) witness: WitnessArgs,
    /// Print the completion's token ids as one JSON array in place of its text.
    #[arg(long)]
    pub(super) print_ids: bool,
}

impl Default for GenerateArgs {
    fn default() -> Self {
        GenerateArgs {
            models: ModelArgs::default(),
            spread: SpreadArgs::default(),
            prompt: PromptArgs::default(),
            system: None,
            sampling: SamplingArgs::default(),
            stop: Vec::new(),
            context_shift: false,
            max_tokens: 64,
            draft_tokens: None,
            verify: VerifyArg::default(),
            prefill: PrefillArg::default(),
            prefill_chunk: None,
            ignore_eos: false,
            witness: WitnessArgs::default(),
            print_ids: false,
        }
    }
}

/// Who hears of the phases, and what is written of them.
#[derive(Args, Default)]
pub(super) struct WitnessArgs {
    /// Marker backends: off, auto, or a list with commas between.
    #[arg(long, value_name = "LIST")]
    pub(super) markers: Option<String>,
    /// How much is marked.
    #[arg(long, value_enum, default_value_t)]
    pub(super) detail: DetailArg,
    /// Record the phases into a Chrome trace that Perfetto opens, at the end.
    #[arg(long, value_name = "FILE.json")]
    pub(super) record: Option<PathBuf>,
    /// Write what was counted and timed as JSON, after every generation.
    #[arg(long, value_name = "FILE.json")]
    pub(super) stats: Option<PathBuf>,
}

#[cfg(unix)]
#[derive(Args)]
pub(super) struct ShardArgs {
    /// Where to listen: unix:PATH or tcp:HOST:PORT (port 0: any that is free), or `inherited` for the
    /// socket that is the standard input.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) listen: String,
    /// The layers, the end exclusive.
    #[arg(long, value_name = "BEGIN..END")]
    pub(super) layers: String,
    /// The target model's folder or GGUF file [default: models/pair/target, here or beside the workspace].
    #[arg(long, value_name = "DIR")]
    pub(super) model: Option<PathBuf>,
    /// Positions that the cache can hold [default: the model's context].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) context: Option<usize>,
    /// Threads [default: the cores there are].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,
    /// Where the layers run.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: String,
    /// Listen for other hosts, with nothing encrypted and nobody authenticated.
    #[arg(long)]
    pub(super) insecure: bool,
    #[command(flatten)]
    pub(super) witness: WitnessArgs,
}

#[derive(Args)]
pub(super) struct VerifyModelArgs {
    /// The model's folder or GGUF file.
    pub(super) dir: PathBuf,
    /// What the model must answer [default: reference.json in the folder, else beside it].
    #[arg(long, value_name = "FILE")]
    pub(super) reference: Option<PathBuf>,
    /// Threads [default: the cores there are].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) threads: Option<usize>,
    /// Where the model runs.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: String,
}

#[derive(Args)]
pub(super) struct DoctorArgs {
    /// Marker backends, as `generate` takes them.
    #[arg(long, value_name = "LIST")]
    pub(super) markers: Option<String>,
}

#[derive(Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) models: ModelArgs,
    #[command(flatten)]
    pub(super) prompt: PromptArgs,
    /// Tokens to generate a run.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 64)]
    pub(super) max_tokens: usize,
    /// Tokens to draft a round at most, or `auto` to adapt to acceptance and costs [default: 4; auto with --draft
    /// ngram].
    #[arg(long, value_name = "N|auto", allow_negative_numbers = true)]
    pub(super) draft_tokens: Option<DraftTokens>,
    /// Runs of each kind; the median counts.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 5)]
    pub(super) runs: usize,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(super) enum VerifyArg {
    /// A block in one pass.
    #[default]
    Batched,
    /// One row a pass, stopping at the first disagreement.
    Sequential,
    /// One row a pass, from a KV snapshot that is restored after a rejection.
    #[value(name = "reference_exact", alias = "reference-exact")]
    ReferenceExact,
}

impl From<VerifyArg> for Verify {
    fn from(arg: VerifyArg) -> Self {
        match arg {
            VerifyArg::Batched => Verify::Batched,
            VerifyArg::Sequential => Verify::Sequential,
            VerifyArg::ReferenceExact => Verify::ReferenceExact,
        }
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(super) enum PrefillArg {
    /// By the kernels that decode uses.
    Exact,
    /// Through the large-matrix path.
    #[default]
    Dense,
}

impl From<PrefillArg> for Prefill {
    fn from(arg: PrefillArg) -> Self {
        match arg {
            PrefillArg::Exact => Prefill::Exact,
            PrefillArg::Dense => Prefill::Dense,
        }
    }
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(super) enum DetailArg {
    /// Prefill, speculative decode and the target's passes.
    #[default]
    Phases,
    /// Also requests, drafts, roll backs and sampling.
    Full,
}

impl From<DetailArg> for marker_core::Detail {
    fn from(arg: DetailArg) -> Self {
        match arg {
            DetailArg::Phases => marker_core::Detail::Phases,
            DetailArg::Full => marker_core::Detail::Full,
        }
    }
}
