//! A part of a model on a GPU: its cache, the checks of a pass, and graphs of the passes that come again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use marker_core::Phase;

use super::buffers::{Ahead, Buffers, Out, Steps};
use super::dense::{Enter, MOST_ROWS, Wide};
use super::driver::{Buffer, Driver, Graph, Stream, enter_to_end, tell};
use super::forward::{Model, Rows};
use super::kernels::{CHUNK, Kernels, MAX_ROWS};
use crate::device::{Answer, DeviceError, Input, MOST_UNSEEN, Part, Pass, Path, Proposed, Shard, Want};
use crate::model::Checkpoint;

/// Graphs that are kept; passes beyond them are launched kernel by kernel.
const MOST_GRAPHS: usize = 64;

/// A part of a model, and where it stands. Fields drop in this order: work, then what it uses.
pub(super) struct GpuShard {
    /// Passes that came before: their graphs once they came twice.
    graphs: HashMap<Steps, Option<Graph>>,
    /// The stream, and what goes on there while the host does something else.
    ahead: Arc<Ahead>,
    buffers: Buffers,
    wide: Option<Wide>,
    cache: Buffer,
    saved: Option<Saved>,
    model: Model,
    driver: Arc<dyn Driver>,
    len: usize,
}

/// A copy of the cache aside.
struct Saved {
    cache: Buffer,
    len: usize,
    /// The shortest that the cache has been since.
    lowest: usize,
}

impl GpuShard {
    /// Uploads the weights of `part`.
    pub(super) fn load(
        driver: &Arc<dyn Driver>,
        kernels: &Arc<Kernels>,
        checkpoint: &Checkpoint,
        part: Part,
    ) -> Result<Self, DeviceError> {
        let config = checkpoint.config();
        let Range { start, end } = part.layers;
        if start > end || end > config.layers {
            return Err(DeviceError::BadPass(format!(
                "layers {start} to {end} of a model of {}",
                config.layers
            )));
        }
        let stream = Stream::new(driver)?;
        let on = stream.handle();
        let model = Model::upload(driver, kernels, on, checkpoint, part)?;
        let layers = model.part.layers.len();
        let cache = Buffer::zeroed(driver, 2 * layers * model.cache_bytes(), "the KV cache", on)?;
        let buffers = Buffers::new(driver, &model, on)?;
        let ahead = Ahead::new(driver, stream)?;
        ahead.stream.synchronise()?;
        Ok(GpuShard {
            graphs: HashMap::new(),
            ahead: Arc::new(ahead),
            buffers,
            wide: None,
            cache,
            saved: None,
            model,
            driver: Arc::clone(driver),
            len: 0,
        })
    }

    /// The rows of a pass that fits, else why it does not.
    fn check(&self, pass: &Pass<'_>) -> Result<usize, DeviceError> {
        let bad = |why: String| Err(DeviceError::BadPass(why));
        let (part, shape, cached) = (&self.model.part, &self.model.shape, self.len);
        let rows = match pass.input {
            Input::Tokens(_) if !part.embedding => {
                return bad("token ids for a part without the embedding".into());
            }
            Input::Hidden(_) if part.embedding && !part.layers.is_empty() => {
                return bad("hidden state for a part that starts with the embedding".into());
            }
            Input::Tokens(tokens) => {
                if let Some(token) = tokens.iter().find(|&&token| token as usize >= shape.vocab) {
                    return bad(format!("token id {token} of a vocabulary of {}", shape.vocab));
                }
                tokens.len()
            }
            Input::Hidden(values) => {
                if !values.len().is_multiple_of(shape.hidden) {
                    return bad(format!("{} values are no whole rows of {}", values.len(), shape.hidden));
                }
                values.len() / shape.hidden
            }
        };
        if rows == 0 {
            return bad("no rows".into());
        }
        if pass.start != cached {
            return bad(format!("rows from position {} on behind a cache of {cached}", pass.start));
        }
        if rows > part.context - cached {
            let context = part.context;
            return bad(format!("{rows} rows behind a cache of {cached} positions that holds {context}"));
        }
        if let Want::Tokens(wanted) | Want::Logits(wanted) = &pass.want {
            if !part.head {
                return bad("token ids from a part without the head".into());
            }
            if wanted.start > wanted.end || wanted.end > rows {
                return bad(format!("an answer for rows {} to {} of {rows}", wanted.start, wanted.end));
            }
        }
        Ok(rows)
    }

    /// Appends the rows `range` of a pass, at most [`MAX_ROWS`].
    fn few(&mut self, pass: &Pass<'_>, range: Range<usize>, answer: &mut Answer) -> Result<(), DeviceError> {
        let hidden = self.model.shape.hidden;
        let width = self.model.shape.width;
        let rows = range.len();
        let start = pass.start + range.start;
        let inputs = self.buffers.inputs_host.values();
        inputs[0] = start as u32;
        match pass.input {
            Input::Tokens(tokens) => inputs[1..=rows].copy_from_slice(&tokens[range.clone()]),
            Input::Hidden(values) => {
                let values = values[range.start * hidden..range.end * hidden].chunks(hidden);
                let to = self.buffers.x_host.values();
                for (to, values) in to.chunks_mut(width).zip(values) {
                    to[..hidden].copy_from_slice(values);
                    to[hidden..].fill(0.0);
                }
            }
        }
        // The wanted rows among these, counted from the first of these.
        let among = |wanted: &Range<usize>| {
            let clip = |at: usize| at.clamp(range.start, range.end) - range.start;
            clip(wanted.start)..clip(wanted.end)
        };
        let out = match &pass.want {
            Want::Hidden => Out::Hidden,
            Want::Tokens(wanted) | Want::Logits(wanted) if among(wanted).is_empty() => Out::Nothing,
            Want::Tokens(wanted) => Out::Tokens(among(wanted)),
            Want::Logits(wanted) => Out::Logits(among(wanted)),
        };
        let comes_hidden = matches!(pass.input, Input::Hidden(_));
        let steps = Steps { rows, hidden: comes_hidden, chunks: chunks(start + rows), out };
        let ahead = Arc::clone(&self.ahead);
        let done = self.replay(&steps, &ahead.stream);
        // Also after a failure: what is under way must not meet the next pass's inputs.
        done.and(ahead.stream.synchronise())?;
        match &steps.out {
            Out::Nothing | Out::Proposed(_) | Out::Accepted => {}
            Out::Hidden => {
                for row in self.buffers.x_host.values().chunks(width).take(rows) {
                    answer.hidden.extend_from_slice(&row[..hidden]);
                }
            }
            Out::Tokens(wanted) | Out::Logits(wanted) => {
                answer.tokens.extend_from_slice(&self.buffers.tokens_host.values()[..wanted.len()]);
            }
        }
        if let Out::Logits(wanted) = &steps.out {
            self.logits(wanted.len(), answer)?;
        }
        Ok(())
    }

    /// Takes the logits of the last pass's `rows` rows.
    fn logits(&self, rows: usize, answer: &mut Answer) -> Result<(), DeviceError> {
        let (vocab, stride) = (self.model.shape.vocab, self.model.logits_width());
        let mut logits = vec![0.0; rows * stride];
        self.buffers.logits.read(0, &mut logits, self.ahead.stream.handle())?;
        for row in logits.chunks(stride) {
            answer.logits.extend_from_slice(&row[..vocab]);
        }
        Ok(())
    }

    /// Appends the rows `range` of a pass, at most [`MOST_ROWS`], through the dense kernels.
    fn dense(
        &mut self,
        pass: &Pass<'_>,
        range: Range<usize>,
        answer: &mut Answer,
    ) -> Result<(), DeviceError> {
        let (on, rows) = (self.ahead.stream.handle(), range.len());
        if !self.wide.as_ref().is_some_and(|wide| wide.fits(rows)) {
            self.wide = None;
            self.wide = Some(Wide::new(&self.driver, &self.model, rows, on)?);
        }
        let (Some(wide), hidden, width) = (&self.wide, self.model.shape.hidden, self.model.shape.width)
        else {
            return Ok(());
        };
        let mut padded = Vec::new();
        let enter = match pass.input {
            Input::Tokens(tokens) => Enter::Tokens(&tokens[range.clone()]),
            Input::Hidden(values) => {
                for row in values[range.start * hidden..range.end * hidden].chunks(hidden) {
                    padded.extend_from_slice(row);
                    padded.resize(padded.len().next_multiple_of(width), 0.0);
                }
                Enter::Hidden(&padded)
            }
        };
        let (_, waiting) = self.model.dense(
            enter,
            pass.start + range.start,
            wide,
            &self.buffers,
            &self.cache,
            &self.ahead.stream,
        )?;
        let stream = Rows { x: &wide.x, partial: &wide.partial, rows };
        match &pass.want {
            Want::Hidden => {
                if waiting.splits > 0 {
                    self.model.norm(None, waiting, stream, 0..rows, (&wide.x, false), on)?;
                }
                padded.resize(rows * width, 0.0);
                wide.x.read(0, &mut padded, on)?;
                for row in padded.chunks(width) {
                    answer.hidden.extend_from_slice(&row[..hidden]);
                }
                Ok(())
            }
            Want::Tokens(wanted) | Want::Logits(wanted) => {
                let clip = |at: usize| at.clamp(range.start, range.end) - range.start;
                let (first, last) = (clip(wanted.start), clip(wanted.end));
                for first in (first..last).step_by(MAX_ROWS) {
                    let group = first..last.min(first + MAX_ROWS);
                    let count = group.len();
                    let chosen = self.buffers.tokens.at();
                    self.model.leave(waiting, stream, group, chosen, &self.buffers, on)?;
                    self.buffers.tokens_host.download(&self.buffers.tokens, count, on)?;
                    self.ahead.stream.synchronise()?;
                    answer.tokens.extend_from_slice(&self.buffers.tokens_host.values()[..count]);
                    if matches!(pass.want, Want::Logits(_)) {
                        self.logits(count, answer)?;
                    }
                }
                self.ahead.stream.synchronise()
            }
        }
    }

    /// Does a pass: kernel by kernel at first, as one graph when it comes again.
    fn replay(&mut self, steps: &Steps, stream: &Stream) -> Result<(), DeviceError> {
        let GpuShard { graphs, ahead, buffers, cache, model, .. } = self;
        let work = || model.few(steps, buffers, ahead, cache, stream);
        let room = graphs.len() < MOST_GRAPHS;
        match graphs.get_mut(steps) {
            Some(Some(graph)) => return graph.launch(stream),
            Some(slot) => {
                let graph = slot.insert(stream.capture(work)?);
                return graph.launch(stream);
            }
            None if room => drop(graphs.insert(steps.clone(), None)),
            None => {}
        }
        work()
    }

    /// After a failure waits for what is under way: it must not meet what is then dropped or used again.
    fn settled(&self, done: Result<(), DeviceError>) -> Result<(), DeviceError> {
        if done.is_err() {
            // The failure that came first is the one to tell.
            let _ = self.ahead.stream.synchronise();
        }
        done
    }

    /// Bytes of one position in a layer's keys.
    fn position_bytes(&self) -> usize {
        self.model.shape.kv_width() * size_of::<f32>()
    }
}

/// Chunks of the cache for attention up to a position: powers of two, so that few graphs serve all lengths. Those
/// behind the end have nothing to do.
fn chunks(end: usize) -> usize {
    end.div_ceil(CHUNK).next_power_of_two()
}

impl Drop for GpuShard {
    fn drop(&mut self) {
        // The stream may outlive this in what was proposed; its work must not.
        enter_to_end(&*self.driver);
        if let Err(error) = self.ahead.settle() {
            tell(&error);
        }
    }
}

impl Shard for GpuShard {
    fn part(&self) -> &Part {
        &self.model.part
    }

    fn device(&self) -> u32 {
        self.driver.ordinal()
    }

    fn cached(&self) -> usize {
        self.len
    }

    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let rows = self.check(pass)?;
        self.driver.enter()?;
        self.ahead.settle()?;
        answer.hidden.clear();
        answer.tokens.clear();
        answer.logits.clear();
        // A few rows are no work for large tiles, and exact through the kernels of decode.
        if pass.path == Path::Dense && rows > MAX_ROWS && self.model.is_wide() {
            for start in (0..rows).step_by(MOST_ROWS) {
                let done = self.dense(pass, start..rows.min(start + MOST_ROWS), answer);
                self.settled(done)?;
            }
        } else {
            for start in (0..rows).step_by(MAX_ROWS) {
                self.few(pass, start..rows.min(start + MAX_ROWS), answer)?;
            }
        }
        self.len += rows;
        Ok(())
    }

    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        self.len = self.len.min(len);
        if let Some(saved) = &mut self.saved {
            saved.lowest = saved.lowest.min(self.len);
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.driver.enter()?;
        let on = self.ahead.stream.handle();
        let copy = match self.saved.take() {
            Some(saved) => saved.cache,
            None => Buffer::new(&self.driver, self.cache.bytes(), "a copy of the KV cache")?,
        };
        self.settled(copy.copy_from(0, &self.cache, 0, self.cache.bytes(), on))?;
        self.saved = Some(Saved { cache: copy, len: self.len, lowest: self.len });
        Ok(())
    }

    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        self.driver.enter()?;
        let Some(saved) = &self.saved else {
            return Err(DeviceError::BadPass("nothing was copied aside to restore".into()));
        };
        // Rows appended after a roll back below the copy's end were computed from another beginning.
        let appended = if saved.lowest < saved.len { 0 } else { self.len - saved.len };
        if accepted > appended {
            return Err(DeviceError::BadPass(format!(
                "{accepted} rows to keep, but {appended} were appended to the copy"
            )));
        }
        let (on, bytes) = (self.ahead.stream.handle(), saved.len * self.position_bytes());
        for half in 0..2 * self.model.part.layers.len() {
            let offset = half * self.model.cache_bytes();
            self.cache.copy_from(offset, &saved.cache, offset, bytes, on)?;
        }
        self.len = saved.len + accepted;
        Ok(())
    }

    fn memory(&self) -> Option<&str> {
        let Part { embedding, head, .. } = self.model.part;
        (embedding && head).then(|| self.driver.name())
    }

    fn propose(&mut self, tokens: &[u32], count: usize) -> Result<Proposed, DeviceError> {
        let (start, rows) = (self.len, tokens.len());
        let want = Want::Tokens(rows.saturating_sub(1)..rows);
        let pass =
            Pass { input: Input::Tokens(tokens), start, phase: Phase::Unspecified, path: Path::Decode, want };
        self.check(&pass)?;
        let end = start + rows + count - 1;
        if rows > MAX_ROWS || !(1..=MOST_UNSEEN).contains(&count) || end > self.model.part.context {
            return Err(DeviceError::BadPass(format!(
                "{count} proposals behind {rows} rows from {start} on"
            )));
        }
        self.driver.enter()?;
        self.ahead.settle()?;
        let inputs = self.buffers.ahead_host.values();
        inputs[0] = start as u32;
        for (start, pass) in (start + rows..).zip(&mut inputs[1..count]) {
            *pass = start as u32;
        }
        inputs[Ahead::TOKENS..][..rows].copy_from_slice(tokens);
        let ahead = Arc::clone(&self.ahead);
        ahead.is_under_way.store(true, Ordering::Relaxed);
        self.replay(
            &Steps { rows, hidden: false, chunks: chunks(end), out: Out::Proposed(count) },
            &ahead.stream,
        )?;
        self.len = end;
        Ok(Proposed { count, place: ahead })
    }

    fn verify(&mut self, last: u32, proposed: &Proposed, answer: &mut Answer) -> Result<(), DeviceError> {
        let (start, rows) = (self.len, 1 + proposed.count);
        let Ok(ahead) = Arc::clone(&proposed.place).downcast::<Ahead>() else {
            return Err(DeviceError::BadPass("proposals from another kind of device".into()));
        };
        let want = Want::Tokens(0..1);
        let pass =
            Pass { input: Input::Tokens(&[last]), start, phase: Phase::Verify, path: Path::Decode, want };
        self.check(&pass)?;
        if rows > MAX_ROWS || start + rows > self.model.part.context {
            return Err(DeviceError::BadPass(format!("{rows} rows from position {start} on")));
        }
        self.driver.enter()?;
        self.ahead.settle()?;
        let inputs = self.buffers.inputs_host.values();
        (inputs[0], inputs[1]) = (start as u32, last);
        // On the draft's stream, behind its passes: nothing has to be waited for in between.
        let (stream, word) = (&ahead.stream, size_of::<u32>());
        let chosen = Ahead::CHOSEN * word;
        let bytes = proposed.count * word;
        let copied = self.buffers.inputs.copy_from(2 * word, &ahead.ids, chosen, bytes, stream.handle());
        let steps = Steps { rows, hidden: false, chunks: chunks(start + rows), out: Out::Accepted };
        let done = copied.and_then(|()| self.replay(&steps, stream));
        done.and(stream.synchronise())?;
        ahead.is_under_way.store(false, Ordering::Relaxed);
        let said = self.buffers.tokens_host.values();
        let accepted = (said[MAX_ROWS] as usize).min(proposed.count);
        *answer = Answer { tokens: said[..=accepted].to_vec(), ..Answer::default() };
        self.len += rows;
        Ok(())
    }

    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        let Range { start, end } = self.model.part.layers;
        if !(start..end).contains(&layer) {
            return Err(DeviceError::BadPass(format!("layer {layer} of a part with {start} to {end}")));
        }
        self.driver.enter()?;
        let count = self.len * self.model.shape.kv_width();
        let (mut keys, mut values) = (vec![0.0; count], vec![0.0; count]);
        let offset = 2 * (layer - start) * self.model.cache_bytes();
        self.cache.read(offset, &mut keys, self.ahead.stream.handle())?;
        self.cache.read(offset + self.model.cache_bytes(), &mut values, self.ahead.stream.handle())?;
        Ok((keys, values))
    }
}
