//! Keys and values of the positions so far, laid out like packed weights so that attention is two products.
//!
//! Scores are keys times queries: a panel of keys holds 32 positions, its inputs are the head's values.
//! The result is values times probabilities: a panel of values holds 32 of the head's values, its inputs
//! are the positions. Both grow as positions come; what lies behind the end is never read as a number that
//! counts.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::packed::{Kind, LANES, Line, PANEL};
use crate::device::DeviceError;

/// Positions by which a cache grows; keys come in whole panels.
const STEP: usize = 8;
/// Positions, of a longer context, that the allocations of a cache are made for at first. What is not yet written takes no
/// memory, and what is never moves.
const RESERVED: usize = 4096;
/// Beyond them allocations grow by one part in so many.
const GROWTH: usize = 4;

/// One key-value head of one layer.
#[derive(Clone, Debug)]
pub(super) struct Head {
    width: usize,
    /// `[positions / 32, head_dim, 32]`
    keys: Vec<Line>,
    /// One for each 32 of the head's values: `[positions, 32]`.
    values: Vec<Vec<Line>>,
}

impl Head {
    fn new(head_dim: usize) -> Self {
        Head { width: head_dim, keys: Vec::new(), values: vec![Vec::new(); head_dim.div_ceil(PANEL)] }
    }

    /// Lines of a panel of keys.
    fn key_lines(&self) -> usize {
        Kind::F32.lines(self.width)
    }

    /// Room for `positions`; `reserved` are those that an allocation is made for, whole panels.
    fn grow(&mut self, positions: usize, reserved: usize) {
        let panel = self.key_lines();
        extend(&mut self.keys, positions.div_ceil(PANEL) * panel, reserved / PANEL * panel);
        for values in &mut self.values {
            extend(values, Kind::F32.lines(positions), Kind::F32.lines(reserved));
        }
    }

    /// Writes one position's key and value, `head_dim` numbers each.
    pub(super) fn put(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let (half, lane) = (position % PANEL / LANES, position % LANES);
        let start = position / PANEL * self.key_lines() + half;
        for (line, key) in self.keys[start..].iter_mut().step_by(2).zip(key) {
            line.0[lane] = key.to_bits();
        }
        for (lines, value) in self.values.iter_mut().zip(value.chunks(PANEL)) {
            for (line, value) in lines[2 * position..].iter_mut().zip(value.chunks(LANES)) {
                for (slot, value) in line.0.iter_mut().zip(value) {
                    *slot = value.to_bits();
                }
            }
        }
    }

    /// Reads one position's key and value back.
    fn get(&self, position: usize, key: &mut [f32], value: &mut [f32]) {
        let (half, lane) = (position % PANEL / LANES, position % LANES);
        let start = position / PANEL * self.key_lines() + half;
        for (line, key) in self.keys[start..].iter().step_by(2).zip(key) {
            *key = f32::from_bits(line.0[lane]);
        }
        for (lines, value) in self.values.iter().zip(value.chunks_mut(PANEL)) {
            for (line, value) in lines[2 * position..].iter().zip(value.chunks_mut(LANES)) {
                for (slot, value) in line.0.iter().zip(value) {
                    *value = f32::from_bits(*slot);
                }
            }
        }
    }

    /// The keys of positions `32 * panel` and on.
    pub(super) fn keys(&self, panel: usize) -> &[Line] {
        &self.keys[panel * self.key_lines()..][..self.key_lines()]
    }

    /// The head's values `32 * panel` and on, of all positions.
    pub(super) fn values(&self, panel: usize) -> &[Line] {
        &self.values[panel]
    }

    /// The first `len` positions, apart.
    fn copy(&self, len: usize) -> Self {
        let lines = len.div_ceil(PANEL) * self.key_lines();
        let values = self.values.iter().map(|values| values[..Kind::F32.lines(len)].to_vec()).collect();
        Head { width: self.width, keys: self.keys[..lines].to_vec(), values }
    }

    /// Puts the first `len` positions of a copy back and leaves those behind as they are.
    fn put_back(&mut self, copy: &Head, len: usize) {
        let whole = len / PANEL * self.key_lines();
        self.keys[..whole].copy_from_slice(&copy.keys[..whole]);
        for (at, (line, copy)) in self.keys[whole..].iter_mut().zip(&copy.keys[whole..]).enumerate() {
            let lanes = (len % PANEL).saturating_sub(at % 2 * LANES).min(LANES);
            line.0[..lanes].copy_from_slice(&copy.0[..lanes]);
        }
        for (values, copy) in self.values.iter_mut().zip(&copy.values) {
            values[..copy.len()].copy_from_slice(copy);
        }
    }
}

/// Lengthens `lines` to `count`, in one allocation of `reserved` for as long as that is enough.
fn extend(lines: &mut Vec<Line>, count: usize, reserved: usize) {
    if lines.capacity() < count {
        let wanted = if count <= reserved { reserved } else { count + count / GROWTH };
        lines.reserve_exact(wanted - lines.len());
    }
    lines.resize(count, Line::default());
}

/// The caches of a shard's layers.
#[derive(Debug)]
pub(super) struct Cache {
    layers: Vec<Vec<Head>>,
    context: usize,
    len: usize,
    /// Positions that there is room for.
    room: usize,
    saved: Option<Saved>,
}

/// A copy aside.
#[derive(Debug)]
struct Saved {
    layers: Vec<Vec<Head>>,
    len: usize,
    /// The shortest that the cache has been since.
    lowest: usize,
}

impl Cache {
    /// An empty cache for `context` positions.
    pub(super) fn new(layers: usize, kv_heads: usize, head_dim: usize, context: usize) -> Self {
        let layers = vec![vec![Head::new(head_dim); kv_heads]; layers];
        Cache { layers, context, len: 0, room: 0, saved: None }
    }

    /// Positions that count.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Positions that it may hold.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Makes room for `rows` more positions. What counts stays as it is.
    pub(super) fn reserve(&mut self, rows: usize) {
        let wanted = self.len + rows;
        if wanted <= self.room {
            return;
        }
        self.room = wanted.next_multiple_of(STEP);
        let reserved = self.context.min(RESERVED).next_multiple_of(PANEL);
        for head in self.layers.iter_mut().flatten() {
            head.grow(self.room, reserved);
        }
    }

    /// The heads of one of the shard's layers, counted from its first.
    pub(super) fn layer(&mut self, layer: usize) -> &mut [Head] {
        &mut self.layers[layer]
    }

    /// Counts `rows` positions that were written.
    pub(super) fn append(&mut self, rows: usize) {
        self.len += rows;
    }

    /// Forgets positions from the end until `len` are left.
    pub(super) fn roll_back(&mut self, len: usize) {
        self.len = self.len.min(len);
        if let Some(saved) = &mut self.saved {
            saved.lowest = saved.lowest.min(self.len);
        }
    }

    /// Copies everything aside.
    pub(super) fn snapshot(&mut self) {
        let copy = |heads: &Vec<Head>| heads.iter().map(|head| head.copy(self.len)).collect();
        let layers = self.layers.iter().map(copy).collect();
        self.saved = Some(Saved { layers, len: self.len, lowest: self.len });
    }

    /// Puts the copy back, and keeps the first `accepted` positions that were appended behind it.
    pub(super) fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
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
        for (heads, copies) in self.layers.iter_mut().zip(&saved.layers) {
            for (head, copy) in heads.iter_mut().zip(copies) {
                head.put_back(copy, saved.len);
            }
        }
        self.len = saved.len + accepted;
        Ok(())
    }

    /// Keys and values of one layer, `[len, kv_heads * head_dim]` each.
    pub(super) fn rows(&self, layer: usize) -> (Vec<f32>, Vec<f32>) {
        let heads = &self.layers[layer];
        let head_dim = heads.first().map_or(0, |head| head.width);
        let width = heads.len() * head_dim;
        let (mut keys, mut values) = (vec![0.0; self.len * width], vec![0.0; self.len * width]);
        for (at, head) in heads.iter().enumerate() {
            for position in 0..self.len {
                let range: Range<usize> =
                    position * width + at * head_dim..position * width + (at + 1) * head_dim;
                head.get(position, &mut keys[range.clone()], &mut values[range]);
            }
        }
        (keys, values)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use super::*;

    /// Appends `rows` positions whose numbers tell where they belong, shifted by `salt`.
    fn append(cache: &mut Cache, rows: usize, salt: f32) {
        cache.reserve(rows);
        for layer in 0..2 {
            for head in 0..3 {
                for position in cache.len()..cache.len() + rows {
                    let number = |at: usize| salt + (position * 1000 + layer * 500 + head * 100 + at) as f32;
                    let key: Vec<f32> = (0..40).map(number).collect();
                    let value: Vec<f32> = key.iter().map(|key| -key).collect();
                    cache.layer(layer)[head].put(position, &key, &value);
                }
            }
        }
        cache.append(rows);
    }

    fn cache() -> Cache {
        Cache::new(2, 3, 40, 1000)
    }

    #[test]
    fn what_was_put_is_there_as_it_grows() {
        let mut cache = cache();
        for rows in [1, 15, 16, 1, 32, 70] {
            append(&mut cache, rows, 0.0);
        }
        let (keys, values) = cache.rows(1);
        assert_eq!(keys.len(), 135 * 120);
        for (at, key) in keys.iter().enumerate() {
            let (position, head, number) = (at / 120, at % 120 / 40, at % 40);
            assert_eq!(*key, (position * 1000 + 500 + head * 100 + number) as f32);
            assert_eq!(values[at], -key);
        }
    }

    #[test]
    fn room_follows_use_and_not_the_context() {
        let mut cache = Cache::new(1, 1, 64, 1 << 30);
        cache.reserve(5);
        assert_eq!(cache.room, STEP);
        cache.append(5);
        for _ in 0..2 * RESERVED {
            cache.reserve(1);
            cache.append(1);
            assert_eq!(cache.room, cache.len().next_multiple_of(STEP));
        }
    }

    #[test]
    fn rolled_back_and_appended_again_is_never_having_appended() {
        for len in [0, 1, 15, 16, 17, 31, 32, 33, 50] {
            let (mut straight, mut crooked) = (cache(), cache());
            append(&mut straight, len, 0.0);
            append(&mut straight, 9, 0.5);
            append(&mut crooked, len, 0.0);
            append(&mut crooked, 40, 7.0);
            crooked.roll_back(len);
            append(&mut crooked, 9, 0.5);
            crooked.roll_back(1000);
            assert_eq!(straight.rows(0), crooked.rows(0));
            assert_eq!(straight.rows(1), crooked.rows(1));
        }
    }

    #[test]
    fn restore_puts_the_copy_back_and_keeps_what_was_accepted() {
        for len in [0, 1, 15, 16, 17, 31, 32, 33, 50] {
            for accepted in [0, 1, 4, 20] {
                let mut cache = cache();
                append(&mut cache, len, 0.0);
                cache.snapshot();
                append(&mut cache, 20, 0.25);
                let expected = (cache.rows(0), cache.rows(1));
                // Damage what the copy has to mend.
                for position in 0..len {
                    cache.layer(1)[2].put(position, &[9.0; 40], &[9.0; 40]);
                }
                cache.restore(accepted).unwrap();
                assert_eq!(cache.len(), len + accepted);
                let kept = (len + accepted) * 120;
                assert_eq!(cache.rows(0).0, expected.0.0[..kept]);
                assert_eq!(cache.rows(1).0, expected.1.0[..kept]);
                assert_eq!(cache.rows(1).1, expected.1.1[..kept]);
            }
        }
    }

    #[test]
    fn restore_refuses_what_it_cannot_keep() {
        let mut cache = cache();
        append(&mut cache, 10, 0.0);
        assert!(cache.restore(0).is_err());
        cache.snapshot();
        append(&mut cache, 3, 0.0);
        assert!(cache.restore(4).is_err());
        assert_eq!(cache.len(), 13);
        cache.roll_back(8);
        append(&mut cache, 6, 1.0);
        assert!(cache.restore(1).is_err(), "rows behind another beginning");
        cache.restore(0).unwrap();
        assert_eq!(cache.len(), 10);
        let (keys, _) = cache.rows(0);
        assert_eq!(keys[9 * 120], 9000.0);
    }
}
