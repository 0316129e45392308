//! candle's own Llama on the same checkpoint, to be timed in turns with the engine.
//!
//! It runs in a process of its own, which answers a line for each line that it is asked: candle and rayon take their threads from
//! `RAYON_NUM_THREADS`, which has to be there when the process starts, and its memory is told apart from the engine's.
//! Its matrix products take no bf16 on a CPU, so the weights are widened to f32.

use std::io::{self, BufRead, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Instant;

use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use serde::{Deserialize, Serialize};

use crate::{machine, output};

/// The first argument of a process that is to be candle. A model's folder follows.
const AS_CANDLE: &str = "--as-candle";

/// Logits closer than this may change places under other arithmetic.
const CLOSE: f32 = 0.001;

/// Why candle did not generate, or not the same.
#[derive(Debug, thiserror::Error)]
pub enum CandleError {
    /// The process did not start, or went away.
    #[error("candle's process cannot be talked to: {0}")]
    Process(#[from] io::Error),
    /// An answer is none.
    #[error("candle's process answered something else: {0}")]
    Answer(#[from] serde_json::Error),
    /// What it said.
    #[error("candle failed: {0}")]
    Failed(String),
    /// It did not do the same work.
    #[error(
        "candle generated something else from token {at} on, where its two best logits are {margin} apart: this is no comparison"
    )]
    Differs {
        /// The first token that differs, from 0.
        at: usize,
        /// Between candle's two best logits there.
        margin: f32,
    },
}

type Result<T> = std::result::Result<T, CandleError>;

#[derive(Serialize, Deserialize)]
struct Asked {
    prompt: Vec<u32>,
    max_tokens: usize,
}

/// One greedy generation, end of text ignored.
#[derive(Debug, Serialize, Deserialize)]
pub struct Generated {
    /// The ids, without the prompt's.
    pub tokens: Vec<u32>,
    /// To the first token.
    pub prefill_seconds: f64,
    /// From there to the last one.
    pub decode_seconds: f64,
    /// How far the last token's logit is above the next best.
    pub margin: f32,
    /// The most memory that the process has had, in KiB.
    pub peak_kib: Option<u64>,
}

/// A process with one model, which waits to be asked.
pub struct Candle {
    child: Child,
    ask: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Candle {
    /// Starts `program`, whose `main` calls [`serve`] first, as candle with the model in `folder`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(program: &Path, folder: &Path, threads: usize) -> Result<Self> {
        let mut child = Command::new(program)
            .arg(AS_CANDLE)
            .arg(folder)
            .env("RAYON_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let piped = child.stdin.take().zip(child.stdout.take());
        let (ask, answers) = piped.ok_or_else(|| io::Error::other("it has no pipes"))?;
        Ok(Candle { child, ask: Some(ask), answers: BufReader::new(answers).lines() })
    }

    /// Generates `max_tokens` tokens after `prompt`.
    ///
    /// # Errors
    /// What candle says, or that the process is gone.
    pub fn generate(&mut self, prompt: &[u32], max_tokens: usize) -> Result<Generated> {
        let asked = Asked { prompt: prompt.to_vec(), max_tokens };
        if let Some(ask) = &mut self.ask {
            writeln!(ask, "{}", serde_json::to_string(&asked)?)?;
        }
        let answer = self.answers.next().ok_or_else(|| io::Error::other("it ended"))??;
        serde_json::from_str::<std::result::Result<_, String>>(&answer)?.map_err(CandleError::Failed)
    }

    /// Checks that `theirs`, generated after `prompt`, is `ours`, or parts from it only where candle's two best logits are so close
    /// that other arithmetic may choose the other: the place, if so.
    ///
    /// # Errors
    /// [`CandleError::Differs`], and those of [`generate`](Self::generate).
    pub fn compare(&mut self, prompt: &[u32], ours: &[u32], theirs: &[u32]) -> Result<Option<usize>> {
        if ours.len() == theirs.len() {
            let Some(at) = ours.iter().zip(theirs).position(|(our, their)| our != their) else {
                return Ok(None);
            };
            let margin = self.generate(&[prompt, &ours[..at]].concat(), 1)?.margin;
            return if margin < CLOSE { Ok(Some(at)) } else { Err(CandleError::Differs { at, margin }) };
        }
        Err(CandleError::Failed(format!("it generated {} tokens and not {}", theirs.len(), ours.len())))
    }
}

impl Drop for Candle {
    fn drop(&mut self) {
        // It ends with its input.
        self.ask = None;
        let _ = self.child.wait();
    }
}

/// Answers as candle, until there is nothing more to read, if that is what this process was started for. To be called first in `main`.
pub fn serve() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != AS_CANDLE {
        return None;
    }
    let folder = PathBuf::from(arguments.next().unwrap_or_default());
    Some(output::ended("candle", answer(&folder).map(|()| ExitCode::SUCCESS)))
}

fn answer(folder: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::open(folder);
    for line in io::stdin().lines() {
        let asked: Asked = serde_json::from_str(&line?)?;
        let answer = match &mut model {
            Ok(model) => model.generate(&asked),
            Err(why) => Err(why.clone()),
        };
        output::print(&format!("{}\n", serde_json::to_string(&answer)?))?;
    }
    Ok(())
}

/// The model, loaded.
struct Model {
    config: Config,
    llama: Llama,
}

impl Model {
    fn open(folder: &Path) -> std::result::Result<Self, String> {
        let file = |name: &str| {
            let file = folder.join(name);
            std::fs::read(&file).map_err(|why| format!("{} cannot be read: {why}", file.display()))
        };
        let config: LlamaConfig = serde_json::from_slice(&file("config.json")?)
            .map_err(|why| format!("config.json is not one of candle's Llama: {why}"))?;
        let config = config.into_config(false);
        let weights =
            VarBuilder::from_buffered_safetensors(file("model.safetensors")?, DType::F32, &Device::Cpu);
        let llama = weights.and_then(|weights| Llama::load(weights, &config));
        Ok(Model { llama: llama.map_err(|why| why.to_string())?, config })
    }

    fn generate(&self, asked: &Asked) -> std::result::Result<Generated, String> {
        self.greedy(asked).map_err(|why| why.to_string())
    }

    fn greedy(&self, asked: &Asked) -> candle_core::Result<Generated> {
        let mut cache = Cache::new(true, DType::F32, &self.config, &Device::Cpu)?;
        let began = Instant::now();
        let mut logits = self.pass(&asked.prompt, 0, &mut cache)?;
        let mut tokens = vec![best(&logits)?];
        let prefilled = Instant::now();
        while tokens.len() < asked.max_tokens {
            let position = asked.prompt.len() + tokens.len() - 1;
            logits = self.pass(&tokens[tokens.len() - 1..], position, &mut cache)?;
            tokens.push(best(&logits)?);
        }
        let decode_seconds = prefilled.elapsed().as_secs_f64();
        Ok(Generated {
            tokens,
            prefill_seconds: (prefilled - began).as_secs_f64(),
            decode_seconds,
            margin: margin(&logits)?,
            peak_kib: machine::memory_kib("VmHWM"),
        })
    }

    /// The last row's logits, `[1, vocab]`.
    fn pass(&self, tokens: &[u32], position: usize, cache: &mut Cache) -> candle_core::Result<Tensor> {
        self.llama.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, position, cache)
    }
}

fn best(logits: &Tensor) -> candle_core::Result<u32> {
    logits.argmax(D::Minus1)?.squeeze(0)?.to_scalar()
}

/// Between the two largest.
fn margin(logits: &Tensor) -> candle_core::Result<f32> {
    let mut logits: Vec<f32> = logits.squeeze(0)?.to_vec1()?;
    logits.sort_unstable_by(|one, other| other.total_cmp(one));
    Ok(logits.get(..2).map_or(f32::INFINITY, |two| two[0] - two[1]))
}
