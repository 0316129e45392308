//! Where a pass's rows are on their way, and what a pass is asked to do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{Buffer, Driver, Handle, Pinned, Stream};
use super::forward::{Model, Shape, splits};
use super::kernels::{CHUNK, MAX_ROWS, PLANES};
use super::weights::Matrix;
use crate::device::{DeviceError, MOST_UNSEEN};

/// Where a pass's rows are on their way, kept between passes.
pub(super) struct Buffers {
    /// The first row's position, then the rows' token ids.
    pub(super) inputs: Buffer,
    pub(super) inputs_host: Pinned<u32>,
    /// The residual stream, `[MAX_ROWS, width]`.
    pub(super) x: Buffer,
    pub(super) x_host: Pinned<f32>,
    /// Planes of normed, attended and gated rows.
    pub(super) normed: Buffer,
    /// What the normed rows are still to be scaled by: sums of squares.
    pub(super) squares: Buffer,
    pub(super) attended: Buffer,
    pub(super) gated: Buffer,
    /// Sums of queries, keys and values, by split.
    pub(super) partial: Buffer,
    pub(super) q: Buffer,
    pub(super) chunk_sums: Buffer,
    pub(super) chunk_stats: Buffer,
    /// Chunks that are done, by queries and key/value head; zeros between passes.
    pub(super) chunks_done: Buffer,
    /// `[MAX_ROWS, vocab]`, padded.
    pub(super) logits: Buffer,
    pub(super) tops: Buffer,
    pub(super) ids: Buffer,
    /// Chosen token ids; behind them, how many proposals stand.
    pub(super) tokens: Buffer,
    pub(super) tokens_host: Pinned<u32>,
    /// What a shard runs ahead with.
    pub(super) ahead_host: Pinned<u32>,
}

/// What runs ahead of the host: the draft's passes of a round, whose token ids go from pass to pass in [`ids`](Self::ids).
///
/// The host lays out each pass's position and the first pass's token ids, at the places that [`Ahead`] says; each pass
/// then adds the id that it chose.
pub(super) struct Ahead {
    pub(super) stream: Stream,
    pub(super) ids: Buffer,
    /// Whether nobody has waited since.
    pub(super) is_under_way: AtomicBool,
}

impl Ahead {
    /// Where in [`ids`](Self::ids) the first pass's token ids are; before them are the passes' positions.
    pub(super) const TOKENS: usize = MOST_UNSEEN;
    /// Where those that were chosen are.
    pub(super) const CHOSEN: usize = Ahead::TOKENS + MAX_ROWS;

    pub(super) fn new(driver: &Arc<dyn Driver>, stream: Stream) -> Result<Self, DeviceError> {
        let bytes = (Ahead::CHOSEN + MOST_UNSEEN) * size_of::<u32>();
        let ids = Buffer::zeroed(driver, bytes, "a pass", stream.handle())?;
        Ok(Ahead { stream, ids, is_under_way: AtomicBool::new(false) })
    }

    /// Waits for what is under way, so that what it reads may be written.
    pub(super) fn settle(&self) -> Result<(), DeviceError> {
        if self.is_under_way.swap(false, Ordering::Relaxed) { self.stream.synchronise() } else { Ok(()) }
    }

    /// The address of a place.
    pub(super) fn id(&self, at: usize) -> u64 {
        self.ids.at() + (at * size_of::<u32>()) as u64
    }
}

/// Where a pass finds its first row's position and its rows' token ids, and where it leaves those that it chooses.
#[derive(Clone, Copy)]
pub(super) struct Ids {
    pub(super) start: u64,
    pub(super) tokens: u64,
    pub(super) chosen: u64,
}

/// What a pass over at most [`MAX_ROWS`] rows is to do; equal ones are the same launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Steps {
    pub(super) rows: usize,
    /// Whether hidden state comes in, rather than token ids.
    pub(super) hidden: bool,
    /// Chunks of the cache that attention looks at, at least those in use.
    pub(super) chunks: usize,
    pub(super) out: Out,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Out {
    /// Nothing: only the cache grows.
    Nothing,
    /// The residual stream.
    Hidden,
    /// The token ids of these rows.
    Tokens(Range<usize>),
    /// Those, and the logits are left on the device.
    Logits(Range<usize>),
    /// So many tokens behind the rows, one a pass; they stay on the device.
    Proposed(usize),
    /// The token ids of all rows, and how many of the ids behind the first row's, which are on the device already, are
    /// the same.
    Accepted,
}

impl Buffers {
    /// Room for a model's passes.
    pub(super) fn new(driver: &Arc<dyn Driver>, model: &Model, on: Handle) -> Result<Self, DeviceError> {
        let Shape { width, heads, head_dim, attended, inner, .. } = model.shape;
        let new = |bytes| Buffer::zeroed(driver, bytes, "a pass", on);
        let planes = |width| new(PLANES * MAX_ROWS * width * 2);
        let sums = |matrix: &Matrix| splits(matrix) * MAX_ROWS * matrix.outputs * 4;
        let layers = model.layers.iter().map(|layer| &layer.qkv);
        let chunks = model.part.context.div_ceil(CHUNK).next_power_of_two();
        let values = MAX_ROWS * heads * chunks * 4;
        Ok(Buffers {
            inputs: new((1 + MAX_ROWS) * 4)?,
            inputs_host: Pinned::new(driver, 1 + MAX_ROWS, "a pass")?,
            x: new(MAX_ROWS * width * 4)?,
            x_host: Pinned::new(driver, MAX_ROWS * width, "a pass")?,
            normed: planes(width)?,
            squares: new(MAX_ROWS * model.square_parts() * 4)?,
            attended: planes(attended)?,
            gated: planes(inner)?,
            partial: new(layers.map(sums).max().unwrap_or(0))?,
            q: new(MAX_ROWS * heads * head_dim * 4)?,
            chunk_sums: new(values * head_dim)?,
            chunk_stats: new(values * 2)?,
            chunks_done: new(MAX_ROWS * heads * 4)?,
            logits: new(MAX_ROWS * model.logits_width() * 4)?,
            tops: new(MAX_ROWS * 32 * 4)?,
            ids: new(MAX_ROWS * 32 * 4)?,
            tokens: new((MAX_ROWS + 1) * 4)?,
            tokens_host: Pinned::new(driver, MAX_ROWS + 1, "a pass")?,
            ahead_host: Pinned::new(driver, Ahead::CHOSEN, "a pass")?,
        })
    }

    /// Where the rows' token ids are.
    pub(super) fn tokens_in(&self) -> u64 {
        self.inputs.at() + size_of::<u32>() as u64
    }
}
