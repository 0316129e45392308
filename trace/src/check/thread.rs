//! What a thread shows by itself: nesting, the modes of leaves, and the passes inside each parent.

use std::collections::HashSet;

use super::Check;
use crate::model::Range;
use crate::nest::Nest;
use crate::vocabulary::{Meaning, Mode, Phase, Scope};

/// An open range, or the thread itself. What lies around it is told by number: a hostile chain of a million
/// ranges must not be walked once for each of them.
struct Frame<'t> {
    range: Option<&'t Range>,
    /// What the range means, where it is of the vocabulary.
    phase: Option<Phase>,
    passes: Sequence<'t>,
    /// The nearest frame of the vocabulary, itself included; the thread where there is none.
    nearest: usize,
    /// The innermost leaf, itself included.
    leaf: Option<usize>,
    /// Whether it is a prefill or inside one.
    prefill: bool,
}

impl<'t> Frame<'t> {
    /// The thread, around everything.
    fn thread() -> Self {
        Frame {
            range: None,
            phase: None,
            passes: Sequence::default(),
            nearest: 0,
            leaf: None,
            prefill: false,
        }
    }

    /// `range` inside this frame, as frame number `at`.
    fn inside(&self, at: usize, range: &'t Range, phase: Option<Phase>) -> Self {
        let scope = phase.map(|phase| phase.scope);
        Frame {
            range: Some(range),
            phase,
            passes: Sequence::default(),
            nearest: if phase.is_some() { at } else { self.nearest },
            leaf: if scope == Some(Scope::LayerRange) { Some(at) } else { self.leaf },
            prefill: self.prefill || scope == Some(Scope::Prefill),
        }
    }
}

/// The passes directly inside a frame.
#[derive(Default)]
struct Sequence<'t> {
    /// Where in the thread's cycle of layer ranges the next leaf stands.
    next: usize,
    /// The leaf that began the pass.
    first: Option<(&'t Range, Phase)>,
    last: Option<&'t Range>,
    /// Passes and their tokens over each layer range of the cycle.
    sums: Vec<(u64, u64)>,
}

impl<'t> Check<'t> {
    /// Judges the nested ranges of one thread.
    pub(super) fn thread(&mut self, ranges: &'t [Range]) {
        let cycle = self.cycle(ranges);
        let mut nest = Nest::new(ranges);
        let mut frames = vec![Frame::thread()];
        for (at, range) in ranges.iter().enumerate() {
            let place = nest.enter(at);
            while frames.len() > place.depth + 1 {
                if let Some(frame) = frames.pop() {
                    self.close(&frame, &cycle);
                }
            }
            let phase = self.meet(range);
            if let Some(other) = place.overlaps {
                let other = &ranges[other];
                let (label, row) = (self.quote(other), other.row);
                self.wrong(range, || {
                    format!(
                        "it begins inside {label} (row {row}) and ends after it; expected it to lie within or to \
                         begin later"
                    )
                });
            }
            let Some(around) = frames.last() else { break };
            let (nearest, frame) = (around.nearest, around.inside(frames.len(), range, phase));
            if let Some(phase) = phase {
                self.stands_well(range, &phase, &frames);
                self.count_request(range, &phase, around.prefill);
                // Passes belong to the nearest range of the vocabulary.
                if phase.scope == Scope::LayerRange {
                    self.pass(range, &phase, &mut frames[nearest].passes, &cycle);
                }
            }
            frames.push(frame);
        }
        while let Some(frame) = frames.pop() {
            self.close(&frame, &cycle);
        }
    }

    /// The distinct layer ranges of a thread's leaves in the order of a pass; empty where they overlap, so that no
    /// order can be told.
    fn cycle(&self, ranges: &[Range]) -> Vec<(u32, u32)> {
        // Labels come in runs: hashing each of ten million would be felt.
        let runs = ranges.chunk_by(|a, b| a.label == b.label);
        let labels: HashSet<u32> = runs.map(|run| run[0].label).collect();
        let leaf = |label: u32| match &self.meanings[label as usize] {
            Meaning::Phase(Phase { scope: Scope::LayerRange, layers, .. }) => *layers,
            _ => None,
        };
        let mut cycle: Vec<(u32, u32)> = labels.into_iter().filter_map(leaf).collect();
        cycle.sort_unstable();
        cycle.dedup();
        if cycle.is_sorted_by(|a, b| a.1 <= b.0) { cycle } else { Vec::new() }
    }

    fn stands_well(&mut self, range: &'t Range, phase: &Phase, frames: &[Frame<'t>]) {
        let Some(last) = frames.last() else { return };
        let around = Some(&frames[last.nearest]).and_then(|frame| Some((frame.range?, frame.phase?)));
        let leaf = phase.scope == Scope::LayerRange;
        if leaf && let Some(outer) = last.leaf.and_then(|at| frames[at].range) {
            let (label, row) = (self.quote(outer), outer.row);
            self.wrong(range, || {
                format!("a leaf inside the leaf {label} (row {row}); expected leaves never to nest")
            });
            return;
        }
        if !phase.scope.fits_in(around.map(|(_, parent)| parent.scope)) {
            let expected = phase.scope.expected_parents();
            let inside = around.map_or("the top", |(_, parent)| parent.scope.name());
            let row = around.map_or(0, |(outer, _)| outer.row);
            self.wrong(range, || format!("it stands inside {inside} (row {row}); expected {expected}"));
            return;
        }
        if leaf && let Some((outer, parent)) = around {
            self.leaf_fits(range, phase, outer, &parent);
        }
    }

    fn leaf_fits(&mut self, range: &'t Range, leaf: &Phase, outer: &'t Range, parent: &Phase) {
        let expected = match parent.scope {
            Scope::Prefill => parent.mode,
            Scope::SpecDecode => Some(Mode::Verify),
            _ => leaf.mode,
        };
        let row = outer.row;
        let parent_name = crate::vocabulary::group(parent);
        if leaf.mode != expected {
            let (found, expected) = (leaf.mode.map_or("", Mode::name), expected.map_or("", Mode::name));
            self.wrong(range, || {
                format!("mode={found} inside {parent_name} (row {row}); expected mode={expected}")
            });
        }
        let one_row = matches!(parent.mode, Some(Mode::Sequential | Mode::ReferenceExact));
        if one_row && leaf.tokens != Some(1) {
            let tokens = leaf.tokens.unwrap_or(0);
            self.wrong(range, || {
                format!("tokens={tokens} inside {parent_name} (row {row}), which verifies one row a pass; expected tokens=1")
            });
        }
        if let (Some((begin, end)), Some((from, to))) = (leaf.layers, parent.layers) {
            if begin < from || end > to {
                self.wrong(range, || {
                    format!("layers {begin}..{end} inside {parent_name} (row {row}) with layers {from}..{to}; expected layers of its parent's")
                });
            } else if begin == from && leaf.device != parent.device {
                let (found, expected) = (leaf.device.unwrap_or(0), parent.device.unwrap_or(0));
                self.wrong(range, || {
                    format!("device={found} on the first shard, while {parent_name} (row {row}) has device={expected}; expected them equal")
                });
            }
        }
    }

    /// Puts a leaf into the sequence of passes that it belongs to.
    fn pass(&mut self, range: &'t Range, leaf: &Phase, passes: &mut Sequence<'t>, cycle: &[(u32, u32)]) {
        let Some(layers) = leaf.layers else { return };
        let Some(at) = cycle.iter().position(|&known| known == layers) else { return };
        if at != passes.next {
            let (begin, end) = cycle[passes.next];
            let last = passes.last.map_or_else(
                || "at the begin of the first pass".to_owned(),
                |last| format!("after {} (row {})", self.quote(last), last.row),
            );
            self.wrong(range, || {
                format!("layers {}..{} come {last}; expected layers {begin}..{end} next", layers.0, layers.1)
            });
        } else if at > 0
            && let Some((first, phase)) = passes.first
            && (phase.mode, phase.tokens) != (leaf.mode, leaf.tokens)
        {
            let (label, row) = (self.quote(first), first.row);
            self.wrong(range, || {
                format!("its pass began with {label} (row {row}); expected the same mode and tokens on every shard")
            });
        }
        if at == 0 {
            passes.first = Some((range, *leaf));
        }
        passes.last = Some(range);
        passes.next = (at + 1) % cycle.len();
        passes.sums.resize(cycle.len(), (0, 0));
        let (count, tokens) = &mut passes.sums[at];
        *count += 1;
        *tokens = tokens.saturating_add(leaf.tokens.unwrap_or(0));
    }

    /// Judges what is known of a range only when all inside it has been seen.
    fn close(&mut self, frame: &Frame<'t>, cycle: &[(u32, u32)]) {
        let passes = &frame.passes;
        if let (Some(last), true) = (passes.last, passes.next != 0) {
            let (begin, end) = cycle[passes.next];
            self.wrong(last, || format!("its pass ends with it; expected layers {begin}..{end} next"));
        }
        let (Some(range), Some(phase)) = (frame.range, frame.phase) else { return };
        let Some(tokens) = phase.tokens else { return };
        for (&(begin, end), &(count, sum)) in cycle.iter().zip(&passes.sums) {
            match phase.scope {
                Scope::Prefill if sum != tokens => {
                    self.wrong(range, || {
                        format!(
                            "its {count} passes over layers {begin}..{end} hold {sum} tokens; expected the prompt's \
                             {tokens}"
                        )
                    });
                }
                Scope::SpecDecode if count > tokens => {
                    self.wrong(range, || {
                        format!(
                            "{count} passes over layers {begin}..{end}; expected at most one for each of its \
                             {tokens} tokens"
                        )
                    });
                }
                _ => {}
            }
        }
    }
}
