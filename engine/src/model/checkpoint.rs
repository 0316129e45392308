//! Weights, read through `mmap` and checked when they are asked for.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::short;
use super::gguf::{self, Gguf};
use super::json::Fields;
use super::weights::{Entry, Stored, WeightsFile};
use super::{Config, Dtype, ModelError};

/// A tensor as it is stored: row major, little endian, perhaps unaligned. It lies in the file, but where the file
/// orders a tensor's rows in its own way, it is a copy in the order that the models' own code has.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name in the file, for errors.
    pub name: String,
    /// How its values are stored.
    pub dtype: Dtype,
    /// Rows and columns, or one length.
    pub shape: Vec<usize>,
    /// Its bytes, row after row of whole blocks ([`Dtype::block`]).
    pub bytes: Cow<'a, [u8]>,
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
    /// Whether it is a GGUF file, with names and an order of rows of its own.
    gguf: bool,
    files: Vec<WeightsFile>,
    /// What lists the tensors: the index, or the only file.
    listing: PathBuf,
    /// Which of `files` holds a tensor, and where in it; `None` where the index promised it in vain.
    tensors: BTreeMap<String, (usize, Option<Entry>)>,
    /// Asked before each layer is read.
    gives_up: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl Checkpoint {
    /// Opens a model directory, or a GGUF file (named itself, or the only one in a directory without other
    /// weights), and checks all that can be checked without reading the weights: every tensor that the
    /// configuration asks for is there, of a known type and of the right shape.
    ///
    /// # Errors
    /// [`ModelError`] says which file, what is wrong with it and what to do.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let checkpoint = match gguf::find(path)? {
            Some(file) => Self::open_gguf(path, &file)?,
            None => Self::open_directory(path)?,
        };
        checkpoint.embedding()?;
        checkpoint.final_norm()?;
        checkpoint.head()?;
        for index in 0..checkpoint.config.layers {
            checkpoint.layer_of(index, |name, shape| checkpoint.tensor(name, shape))?;
        }
        Ok(checkpoint)
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self, ModelError> {
        let gguf = Gguf::open(file)?;
        let config = gguf.config()?;
        let tensors = gguf.tensors.into_iter().map(|(name, entry)| (name, (0, Some(entry)))).collect();
        Ok(Checkpoint {
            dir: path.to_owned(),
            config,
            gguf: true,
            files: vec![gguf.file],
            listing: file.to_owned(),
            tensors,
            gives_up: None,
        })
    }

    fn open_directory(dir: &Path) -> Result<Self, ModelError> {
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
        let mut checkpoint =
            Checkpoint { dir: dir.to_owned(), config, gguf: false, files, listing, tensors, gives_up: None };
        checkpoint.settle_biases();
        Ok(checkpoint)
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reads no further layer once `asked` says so. A model may be large and its disk slow, and who reads it wanted
    /// elsewhere meanwhile.
    pub fn give_up_when(&mut self, asked: impl Fn() -> bool + Send + Sync + 'static) {
        self.gives_up = Some(Box::new(asked));
    }

    /// One layer's weights, each of the type and shape that the configuration asks for.
    ///
    /// # Errors
    /// [`ModelError`] names the tensor that is missing or wrong, or says that there is no such layer, or that reading was
    /// [given up](Self::give_up_when).
    pub fn layer(&self, index: usize) -> Result<LayerWeights<'_>, ModelError> {
        if self.gives_up.as_ref().is_some_and(|asked| asked()) {
            return Err(ModelError::GivenUp { dir: self.dir.clone() });
        }
        self.layer_of(index, |name, shape| self.tensor(name, shape).map(|tensor| self.in_order(tensor)))
    }

    /// One layer's weights, each given by `tensor`.
    fn layer_of<'a, F>(&'a self, index: usize, tensor: F) -> Result<LayerWeights<'a>, ModelError>
    where
        F: Fn(&str, &[usize]) -> Result<Tensor<'a>, ModelError>,
    {
        let config = &self.config;
        if index >= config.layers {
            let (dir, layers) = (self.dir.clone(), config.layers);
            return Err(ModelError::NoSuchLayer { dir, layer: index, layers });
        }
        let (hidden, inner) = (config.hidden, config.intermediate);
        let (q_width, kv_width) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let norm = |name: &str, width| tensor(&layer_name(index, name, "weight"), &[width]);
        let linear = |name: &str, outputs, inputs, biased: bool| {
            let bias = || tensor(&layer_name(index, name, "bias"), &[outputs]);
            Ok::<_, ModelError>(Linear {
                weight: tensor(&layer_name(index, name, "weight"), &[outputs, inputs])?,
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
            .filter_map(|index| self.layer_of(index, |name, shape| self.tensor(name, shape)).ok())
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
    /// no such bias either.
    fn settle_biases(&mut self) {
        let has = |name| self.tensors.contains_key(&layer_name(0, name, "bias"));
        let (q, o) = (has("self_attn.q_proj"), has("self_attn.o_proj"));
        let mlp = has("mlp.gate_proj");
        let config = &mut self.config;
        let doubted = config.architecture.traits().doubted;
        config.qkv_bias &= q || !doubted.qkv;
        config.o_bias &= o || !doubted.o;
        config.mlp_bias &= mlp || !doubted.mlp;
    }

    /// Lets the system take back the memory that reading the weights filled; what is read again is read from the
    /// files again. For a device that has copied what it needs.
    pub fn let_go(&self) {
        self.files.iter().for_each(|file| file.bytes.let_go());
    }

    /// Whether the model is a GGUF file, whose weights may be quantised.
    pub fn is_gguf(&self) -> bool {
        self.gguf
    }

    /// A tensor as it lies in the file.
    fn tensor(&self, name: &str, expected: &[usize]) -> Result<Tensor<'_>, ModelError> {
        let stored = if self.gguf { gguf::stored_name(name) } else { name.into() };
        let (path, entry) = match self.tensors.get(&*stored) {
            None => (&self.listing, None),
            Some((file, entry)) => (&self.files[*file].path, entry.as_ref().map(|entry| (*file, entry))),
        };
        let (path, tensor) = (path.clone(), stored.into_owned());
        let Some((file, entry)) = entry else {
            return Err(ModelError::MissingTensor { path, tensor, expected: expected.to_vec() });
        };
        let dtype = match &entry.dtype {
            Stored::Known(dtype) => *dtype,
            Stored::Other(name) => return Err(ModelError::WrongDtype { path, tensor, found: name.clone() }),
        };
        if entry.shape != expected {
            let (expected, found) = (expected.to_vec(), entry.shape.clone());
            return Err(ModelError::WrongShape { path, tensor, expected, found });
        }
        let bytes = self.files[file].bytes[entry.bytes.clone()].into();
        Ok(Tensor { name: tensor, dtype, shape: entry.shape.clone(), bytes })
    }

    /// The tensor with its rows in the order that the models' own code has.
    fn in_order<'a>(&self, mut tensor: Tensor<'a>) -> Tensor<'a> {
        if let (true, Some(head_dim)) = (self.gguf, gguf::interleaved(&self.config, &tensor.name)) {
            let row = tensor.dtype.bytes(tensor.shape.iter().skip(1).product());
            let mut ordered = Vec::with_capacity(tensor.bytes.len());
            for head in tensor.bytes.chunks_exact(head_dim * row.max(1)) {
                for half in 0..2 {
                    let rows = head.chunks_exact(row).skip(half).step_by(2);
                    rows.for_each(|row| ordered.extend_from_slice(row));
                }
            }
            tensor.bytes = ordered.into();
        }
        tensor
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
        let (length, size) = self.dtype.block();
        let mut values = vec![0.0; self.bytes.len() / size * length];
        self.dtype.widen(&self.bytes, &mut values);
        values
    }

    /// The same tensor in a type that is not quantised, for a device without kernels for those that are.
    pub fn plain(&self) -> Tensor<'_> {
        let Tensor { name, dtype, shape, bytes } = self;
        let (dtype, bytes) = if dtype.is_quantised() {
            (Dtype::F32, self.to_f32().into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into())
        } else {
            (*dtype, Cow::Borrowed(&**bytes))
        };
        Tensor { name: name.clone(), dtype, shape: shape.clone(), bytes }
    }
}
