//! A part of a model on the CPU: what goes in and out of its layers, and the checks of a pass.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::attention::Angles;
use super::cache::Cache;
use super::isa::{Isa, Rows};
use super::layer::{Buffers, Layer, Shape, Step};
use super::multiply::{Greedy, Multiplier};
use super::packed::{Matrix, PANEL, Packed, Table};
use super::pool::Pool;
use crate::device::{Answer, DeviceError, Input, Part, Pass, Shard, Want};
use crate::model::Checkpoint;

/// Where token ids are looked up.
#[derive(Debug)]
enum Embedding {
    /// Not here: hidden state comes in.
    None,
    /// In the head, which is the embedding.
    Head,
    /// In a table of its own.
    Table(Table),
}

/// The final norm and the head.
#[derive(Debug)]
struct Head {
    norm: Vec<f32>,
    weights: Packed,
    /// Panels of token ids that are said.
    panels: usize,
}

/// What a part of a model holds from load on.
struct Model {
    part: Part,
    pool: Arc<Pool>,
    isa: Isa,
    shape: Shape,
    vocab: usize,
    embedding: Embedding,
    layers: Vec<Layer>,
    head: Option<Head>,
}

/// A part of a model, and where it stands.
pub(super) struct CpuShard {
    model: Model,
    angles: Angles,
    cache: Cache,
    buffers: Buffers,
    /// `[rows, vocab]`, padded to whole panels.
    logits: Vec<f32>,
}

impl CpuShard {
    /// Reads and packs the weights of `part`.
    pub(super) fn load(
        pool: Arc<Pool>,
        isa: Isa,
        checkpoint: &Checkpoint,
        part: Part,
    ) -> Result<Self, DeviceError> {
        let config = checkpoint.config();
        if part.layers.start > part.layers.end || part.layers.end > config.layers {
            let Range { start, end } = part.layers;
            return Err(DeviceError::BadPass(format!(
                "layers {start} to {end} of a model of {}",
                config.layers
            )));
        }
        let embedding = match (part.embedding, part.head && config.tied) {
            (false, _) => Embedding::None,
            (true, true) => Embedding::Head,
            (true, false) => Embedding::Table(Table::new(&Matrix::new(&checkpoint.embedding()?))),
        };
        // The largest first, and what was read let go at once: so never much more than the packed weights is in
        // memory.
        let mut head = None;
        if part.head {
            let weights = Packed::stacked(&pool, &[Matrix::new(&checkpoint.head()?)]);
            let panels = weights.panels();
            head = Some(Head { norm: checkpoint.final_norm()?.to_f32(), weights, panels });
            checkpoint.let_go();
        }
        let mut layers = Vec::with_capacity(part.layers.len());
        for layer in part.layers.clone() {
            layers.push(Layer::pack(&pool, &checkpoint.layer(layer)?));
            checkpoint.let_go();
        }
        Ok(CpuShard {
            angles: Angles::new(config.rope.frequencies(config.head_dim)),
            cache: Cache::new(layers.len(), config.kv_heads, config.head_dim, part.context),
            buffers: Buffers::default(),
            logits: Vec::new(),
            model: Model {
                shape: Shape::new(config),
                vocab: config.vocab,
                part,
                pool,
                isa,
                embedding,
                layers,
                head,
            },
        })
    }
}

impl Model {
    /// The rows of a pass that fits, else why it does not.
    fn check(&self, cache: &Cache, pass: &Pass<'_>) -> Result<usize, DeviceError> {
        let bad = |why: String| Err(DeviceError::BadPass(why));
        let rows = match pass.input {
            Input::Tokens(tokens) => {
                if !self.part.embedding {
                    return bad("token ids for a part without the embedding".into());
                }
                if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.vocab) {
                    return bad(format!("token id {token} of a vocabulary of {}", self.vocab));
                }
                tokens.len()
            }
            Input::Hidden(values) => {
                if self.part.embedding && !self.part.layers.is_empty() {
                    return bad("hidden state for a part that starts with the embedding".into());
                }
                let hidden = self.shape.hidden;
                if !values.len().is_multiple_of(hidden) {
                    return bad(format!("{} values are no whole rows of {hidden}", values.len()));
                }
                values.len() / hidden
            }
        };
        let cached = cache.len();
        if rows == 0 {
            return bad("no rows".into());
        }
        if pass.start != cached {
            return bad(format!("rows from position {} on behind a cache of {cached}", pass.start));
        }
        if rows > cache.context() - cached {
            return bad(format!(
                "{rows} rows behind a cache of {cached} positions that holds {}",
                cache.context()
            ));
        }
        if let Want::Tokens(wanted) | Want::Logits(wanted) = &pass.want {
            if self.head.is_none() {
                return bad("token ids from a part without the head".into());
            }
            if wanted.start > wanted.end || wanted.end > rows {
                return bad(format!("an answer for rows {} to {} of {rows}", wanted.start, wanted.end));
            }
        }
        Ok(rows)
    }

    /// Puts the pass's rows into the residual stream.
    fn enter(&self, input: Input<'_>, stream: &mut [f32]) {
        let Shape { hidden, padded, .. } = self.shape;
        let rows = stream.chunks_mut(padded).map(|row| &mut row[..hidden]);
        match input {
            Input::Tokens(tokens) => {
                for (&token, row) in tokens.iter().zip(rows) {
                    match (&self.embedding, &self.head) {
                        (Embedding::Table(table), _) => table.row(token as usize, row),
                        (Embedding::Head, Some(head)) => head.weights.row(token as usize, row),
                        // Checked: no token ids come in without an embedding.
                        _ => row.fill(0.0),
                    }
                }
            }
            Input::Hidden(values) => {
                values.chunks(hidden).zip(rows).for_each(|(values, row)| row.copy_from_slice(values));
            }
        }
    }

    /// Norm, head and argmax of the wanted rows: token ids to `tokens`, logits to `logits`.
    fn leave(
        &self,
        step: &Step<'_>,
        wanted: &Range<usize>,
        buffers: &mut Buffers,
        logits: &mut Vec<f32>,
        tokens: &mut Vec<u32>,
    ) {
        let Some(head) = &self.head else { return };
        let padded = self.shape.padded;
        let normed = &mut buffers.normed[..wanted.len() * padded];
        step.norm(&buffers.stream[wanted.start * padded..wanted.end * padded], &head.norm, normed);
        logits.resize(wanted.len() * head.panels * PANEL, 0.0);
        let mut greedy = Vec::new();
        greedy.resize_with(wanted.len(), Greedy::default);
        let rows = Rows { values: normed, stride: padded, count: wanted.len() };
        let multiplier = Multiplier { pool: step.pool, isa: step.isa };
        multiplier.head(&head.weights, head.panels, rows, logits, &greedy);
        tokens.extend(greedy.iter().map(Greedy::index));
    }
}

impl Shard for CpuShard {
    fn part(&self) -> &Part {
        &self.model.part
    }

    fn device(&self) -> u32 {
        0
    }

    fn cached(&self) -> usize {
        self.cache.len()
    }

    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let CpuShard { model, angles, cache, buffers, logits } = self;
        let rows = model.check(cache, pass)?;
        answer.hidden.clear();
        answer.tokens.clear();
        answer.logits.clear();
        let Shape { hidden, padded, .. } = model.shape;
        buffers.reserve(&model.shape, rows, model.pool.threads());
        cache.reserve(rows);
        angles.reach(pass.start + rows);
        let step =
            Step { pool: &model.pool, isa: model.isa, shape: &model.shape, angles, start: pass.start, rows };

        model.enter(pass.input, &mut buffers.stream);
        for (number, layer) in model.layers.iter().enumerate() {
            layer.forward(&step, cache.layer(number), buffers);
        }
        match &pass.want {
            Want::Hidden => {
                for row in buffers.stream.chunks(padded) {
                    answer.hidden.extend_from_slice(&row[..hidden]);
                }
            }
            Want::Tokens(wanted) => model.leave(&step, wanted, buffers, logits, &mut answer.tokens),
            Want::Logits(wanted) => {
                model.leave(&step, wanted, buffers, logits, &mut answer.tokens);
                let said = model.head.as_ref().map_or(1, |head| head.panels * PANEL);
                for row in logits.chunks(said) {
                    let end = answer.logits.len() + model.vocab;
                    answer.logits.extend_from_slice(&row[..said.min(model.vocab)]);
                    answer.logits.resize(end, f32::NEG_INFINITY);
                }
            }
        }
        cache.append(rows);
        Ok(())
    }

    fn shortlist(&mut self, tokens: usize) {
        if let Some(head) = &mut self.model.head {
            head.panels = tokens.div_ceil(PANEL).clamp(1, head.weights.panels());
        }
    }

    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.cache.roll_back(len);
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.cache.snapshot();
        Ok(())
    }

    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.cache.restore(accepted)
    }

    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        let Range { start, end } = self.model.part.layers;
        if !(start..end).contains(&layer) {
            return Err(DeviceError::BadPass(format!("layer {layer} of a part with {start} to {end}")));
        }
        Ok(self.cache.rows(layer - start))
    }
}
