//! Weights, read through `mmap` and checked when they are asked for.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use half::{bf16, f16};
use sha2::{Digest, Sha256};

use super::error::short;
use super::json::Fields;
use super::weights::{Entry, WeightsFile};
use super::{Architecture, Config, ModelError};

/// How a tensor's values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
}

/// A tensor as it lies in the file: row major, little endian, perhaps unaligned.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file, for errors.
    pub name: String,
    /// How its values are stored.
    pub dtype: Dtype,
    /// Rows and columns, or one length.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// `y = W x + b`.
#[derive(Clone, Debug)]
pub struct Linear<'a> {
    /// `[outputs, inputs]`
    pub weight: Tensor<'a>,
    /// `[outputs]`
    pub bias: Option<Tensor<'a>>,
}

/// One decoder layer.
#[derive(Clone, Debug)]
pub struct LayerWeights<'a> {
    /// `[hidden]`
    pub input_norm: Tensor<'a>,
    /// `[heads * head_dim, hidden]`
    pub q: Linear<'a>,
    /// `[kv_heads * head_dim, hidden]`
    pub k: Linear<'a>,
    /// `[kv_heads * head_dim, hidden]`
    pub v: Linear<'a>,
    /// `[hidden, heads * head_dim]`
    pub o: Linear<'a>,
    /// `[head_dim]`, with `Config::qk_norm`
    pub q_norm: Option<Tensor<'a>>,
    /// `[head_dim]`, with `Config::qk_norm`
    pub k_norm: Option<Tensor<'a>>,
    /// `[hidden]`
    pub post_norm: Tensor<'a>,
    /// `[intermediate, hidden]`
    pub gate: Linear<'a>,
    /// `[intermediate, hidden]`
    pub up: Linear<'a>,
    /// `[hidden, intermediate]`
    pub down: Linear<'a>,
}

/// A model on disk: its configuration, and its weights behind `mmap`. Its files must not change while it is
/// open: the system reads them as they are needed.
pub struct Checkpoint {
    dir: PathBuf,
    config: Config,
    files: Vec<WeightsFile>,
    /// What lists the tensors: the index, or the only file.
    listing: PathBuf,
    /// Which of `files` holds a tensor, and where in it; `None` where the index promised it in vain.
    tensors: BTreeMap<String, (usize, Option<Entry>)>,
}

impl Checkpoint {
    /// Opens a model directory and checks all that can be checked without reading the weights: every tensor
    /// that the configuration asks for is there, of a known type and of the right shape.
    ///
    /// # Errors
    /// [`ModelError`] says which file, what is wrong with it and what to do.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        match fs::metadata(dir) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(ModelError::NotADirectory { dir: dir.to_owned() }),
            Err(source) => {
                return Err(match source.kind() {
                    std::io::ErrorKind::NotFound => ModelError::NoSuchDirectory { dir: dir.to_owned() },
                    std::io::ErrorKind::NotADirectory => ModelError::NotADirectory { dir: dir.to_owned() },
                    _ => ModelError::Unreadable { path: dir.to_owned(), source },
                });
            }
        }
        let config = Config::read(dir)?;
        let (single, index) = (dir.join("model.safetensors"), dir.join("model.safetensors.index.json"));
        let (listing, (files, tensors)) = if single.exists() {
            let whole = open_single(&single)?;
            (single, whole)
        } else if index.exists() {
            let sharded = open_sharded(dir, &index)?;
            (index, sharded)
        } else {
            return Err(ModelError::NoWeights { dir: dir.to_owned() });
        };
        let mut checkpoint = Checkpoint { dir: dir.to_owned(), config, files, listing, tensors };
        checkpoint.settle_biases();
        checkpoint.embedding()?;
        checkpoint.final_norm()?;
        checkpoint.head()?;
        for index in 0..checkpoint.config.layers {
            checkpoint.layer(index)?;
        }
        Ok(checkpoint)
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One layer's weights, each of the type and shape that the configuration asks for.
    ///
    /// # Errors
    /// [`ModelError`] names the tensor that is missing or wrong, or says that there is no such layer.
    pub fn layer(&self, index: usize) -> Result<LayerWeights<'_>, ModelError> {
        let config = &self.config;
        if index >= config.layers {
            let (dir, layers) = (self.dir.clone(), config.layers);
            return Err(ModelError::NoSuchLayer { dir, layer: index, layers });
        }
        let (hidden, inner) = (config.hidden, config.intermediate);
        let (q_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let norm = |name: &str, width| self.tensor(&layer_name(index, name, "weight"), &[width]);
        let linear = |name: &str, outputs, inputs, biased: bool| {
            let bias = || self.tensor(&layer_name(index, name, "bias"), &[outputs]);
            Ok::<_, ModelError>(Linear {
                weight: self.tensor(&layer_name(index, name, "weight"), &[outputs, inputs])?,
                bias: biased.then(bias).transpose()?,
            })
        };
        let head_norm = |name| config.qk_norm.then(|| norm(name, config.head_dim)).transpose();
        Ok(LayerWeights {
            input_norm: norm("input_layernorm", hidden)?,
            q: linear("self_attn.q_proj", q_width, hidden, config.qkv_bias)?,
            k: linear("self_attn.k_proj", kv_width, hidden, config.qkv_bias)?,
            v: linear("self_attn.v_proj", kv_width, hidden, config.qkv_bias)?,
            o: linear("self_attn.o_proj", hidden, q_width, config.o_bias)?,
            q_norm: head_norm("self_attn.q_norm")?,
            k_norm: head_norm("self_attn.k_norm")?,
            post_norm: norm("post_attention_layernorm", hidden)?,
            gate: linear("mlp.gate_proj", inner, hidden, config.mlp_bias)?,
            up: linear("mlp.up_proj", inner, hidden, config.mlp_bias)?,
            down: linear("mlp.down_proj", hidden, inner, config.mlp_bias)?,
        })
    }

    /// The embedding, `[vocab, hidden]`.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn embedding(&self) -> Result<Tensor<'_>, ModelError> {
        self.tensor("model.embed_tokens.weight", &[self.config.vocab, self.config.hidden])
    }

    /// The norm before the head, `[hidden]`.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn final_norm(&self) -> Result<Tensor<'_>, ModelError> {
        self.tensor("model.norm.weight", &[self.config.hidden])
    }

    /// The head, `[vocab, hidden]`: the embedding where the model is tied.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn head(&self) -> Result<Tensor<'_>, ModelError> {
        if self.config.tied {
            return self.embedding();
        }
        self.tensor("lm_head.weight", &[self.config.vocab, self.config.hidden])
    }

    /// Bytes of weights that one pass over `layers` reads, as they are stored. Layers that the model does
    /// not have count nothing.
    pub fn layer_bytes(&self, layers: Range<usize>) -> u64 {
        (layers.start..layers.end.min(self.config.layers))
            .filter_map(|index| self.layer(index).ok())
            .map(|layer| layer.tensors().map(|tensor| tensor.bytes.len() as u64).sum::<u64>())
            .sum()
    }

    /// A number that tells models apart without reading their weights: over the configuration, each
    /// tensor's name, type and shape, and the size of each file. Equal on every host that has the same files.
    pub fn fingerprint(&self) -> u64 {
        // What ends a text is the caller's business and changes no hidden state.
        let config = Config { eos: Vec::new(), ..self.config.clone() };
        let mut hash = Sha256::new();
        hash.update(format!("{config:?}\n"));
        for (name, (_, entry)) in &self.tensors {
            if let Some(entry) = entry {
                hash.update(format!("{name:?} {} {:?}\n", entry.dtype, entry.shape));
            }
        }
        for file in &self.files {
            hash.update(format!("{}\n", file.bytes.len()));
        }
        hash.finalize().iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// Turns off switches that the models' own code does not know for an architecture, where the files hold
    /// no such bias either: `attention_bias` for Mistral and for Qwen2's output, `mlp_bias` beyond Llama.
    fn settle_biases(&mut self) {
        let has = |name| self.tensors.contains_key(&layer_name(0, name, "bias"));
        let (q, o) = (has("self_attn.q_proj"), has("self_attn.o_proj"));
        let mlp = has("mlp.gate_proj");
        let config = &mut self.config;
        if config.architecture == Architecture::Mistral {
            config.qkv_bias &= q;
        }
        if matches!(config.architecture, Architecture::Mistral | Architecture::Qwen2) {
            config.o_bias &= o;
        }
        if config.architecture != Architecture::Llama {
            config.mlp_bias &= mlp;
        }
    }

    fn tensor(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, ModelError> {
        let tensor = name.to_owned();
        let (path, entry) = match self.tensors.get(name) {
            None => (&self.listing, None),
            Some((file, entry)) => (&self.files[*file].path, entry.as_ref().map(|entry| (*file, entry))),
        };
        let path = path.clone();
        let Some((file, entry)) = entry else {
            return Err(ModelError::MissingTensor { path, tensor, expected: expected.to_vec() });
        };
        let dtype = match entry.dtype {
            safetensors::Dtype::BF16 => Dtype::Bf16,
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::F32 => Dtype::F32,
            other => return Err(ModelError::WrongDtype { path, tensor, found: other.to_string() }),
        };
        if entry.shape != expected {
            let (expected, found) = (expected.to_vec(), entry.shape.clone());
            return Err(ModelError::WrongShape { path, tensor, expected, found });
        }
        let bytes = &self.files[file].bytes[entry.bytes.clone()];
        Ok(Tensor { name: tensor, dtype, shape: entry.shape.clone(), bytes })
    }
}

type Opened = (Vec<WeightsFile>, BTreeMap<String, (usize, Option<Entry>)>);

fn open_single(path: &Path) -> Result<Opened, ModelError> {
    let (file, entries) = WeightsFile::open(path)?;
    let tensors = entries.into_iter().map(|(name, entry)| (name, (0, Some(entry)))).collect();
    Ok((vec![file], tensors))
}

fn open_sharded(dir: &Path, index: &Path) -> Result<Opened, ModelError> {
    let fields = Fields::read(index)?;
    let map = fields.need("weight_map", fields.object("weight_map")?)?;
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let (mut files, mut contents, mut tensors) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (tensor, value) in map.values() {
        let name = value.as_str().ok_or_else(|| map.bad(&short(tensor), "the name of a file".to_owned()))?;
        let number = if let Some(&number) = numbers.get(name) {
            number
        } else {
            // One plain name: a path could lead anywhere.
            let mut components = Path::new(name).components();
            if !matches!((components.next(), components.next()), (Some(Component::Normal(_)), None)) {
                return Err(ModelError::OutsideDirectory { path: index.to_owned(), file: short(name) });
            }
            let (file, entries) = WeightsFile::open(&dir.join(name))?;
            files.push(file);
            contents.push(entries);
            numbers.insert(name, files.len() - 1);
            files.len() - 1
        };
        tensors.insert(tensor.clone(), (number, contents[number].remove(tensor)));
    }
    Ok((files, tensors))
}

fn layer_name(layer: usize, part: &str, kind: &str) -> String {
    format!("model.layers.{layer}.{part}.{kind}")
}

impl LayerWeights<'_> {
    fn tensors(&self) -> impl Iterator<Item = &Tensor<'_>> {
        let linear = [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down];
        let norms = [&self.input_norm, &self.post_norm].into_iter().chain(&self.q_norm).chain(&self.k_norm);
        norms.chain(linear.into_iter().flat_map(|linear| [&linear.weight].into_iter().chain(&linear.bias)))
    }
}

impl Tensor<'_> {
    /// The values widened to `f32`, exactly.
    pub fn to_f32(&self) -> Vec<f32> {
        let (pairs, quads) = (self.bytes.as_chunks().0, self.bytes.as_chunks().0);
        match self.dtype {
            Dtype::Bf16 => pairs.iter().map(|&pair| bf16::from_le_bytes(pair).to_f32()).collect(),
            Dtype::F16 => pairs.iter().map(|&pair| f16::from_le_bytes(pair).to_f32()).collect(),
            Dtype::F32 => quads.iter().map(|&quad| f32::from_le_bytes(quad)).collect(),
        }
    }
}
