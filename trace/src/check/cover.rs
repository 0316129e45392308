//! Whether the layer ranges of all files together tile the model.
//!
//! A thread shows the order of its own shards; whether a remote shard ran as many passes as its parent shows only
//! over all files. For each mode and number of tokens, every layer must have been passed equally often. Layers that
//! no file passed at all are a shard whose file was not given: a note.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::model::{Finding, Range, Severity};
use crate::vocabulary::{Meaning, Mode, Scope};

/// Distinct layer ranges of one class that are still compared; more are no pass of a model.
const DISTINCT_MAX: usize = 4096;

/// Mode and tokens of a pass.
type Class = (Option<Mode>, Option<u64>);

/// Passes over one layer range.
struct Passes<'t> {
    count: u64,
    first: &'t Range,
}

impl Check<'_> {
    pub(super) fn cover(&mut self) {
        let mut passes: BTreeMap<Class, BTreeMap<(u32, u32), Passes<'_>>> = BTreeMap::new();
        let mut model_end = 0;
        for (meaning, seen) in self.meanings.iter().zip(&self.seen) {
            let (&(count, Some(first)), Meaning::Phase(phase)) = (seen, meaning) else { continue };
            let Some(layers) = phase.layers else { continue };
            model_end = model_end.max(layers.1);
            if phase.scope == Scope::LayerRange {
                // Labels that differ in the device only are passes over the same layers.
                let class = passes.entry((phase.mode, phase.tokens)).or_default();
                class.entry(layers).or_insert(Passes { count: 0, first }).count += count;
            }
        }
        let all: BTreeSet<(u32, u32)> = passes.values().flat_map(|class| class.keys().copied()).collect();
        if all.is_empty() {
            return;
        }
        let missing = gaps(&all, model_end);
        if !missing.is_empty() {
            let layers: Vec<String> = missing.iter().map(|(from, to)| format!("{from}..{to}")).collect();
            self.add(Severity::Note, None, || {
                format!(
                    "no file passes layers {} of {model_end}: a shard's file was not given, or its marks were lost",
                    layers.join(" and ")
                )
            });
        }
        for ((mode, tokens), class) in passes {
            if class.len() > DISTINCT_MAX {
                continue;
            }
            let mut bounds: BTreeSet<u32> = class.keys().flat_map(|&(from, to)| [from, to]).collect();
            bounds.extend([0, model_end]);
            bounds.extend(missing.iter().flat_map(|&(from, to)| [from, to]));
            let bounds: Vec<u32> = bounds.into_iter().collect();
            let mut counts: Vec<((u32, u32), u64)> = Vec::new();
            for pair in bounds.windows(2) {
                let (from, to) = (pair[0], pair[1]);
                if missing.iter().any(|&(a, b)| a <= from && to <= b) {
                    continue;
                }
                let over = class.iter().filter(|(layers, _)| layers.0 <= from && to <= layers.1);
                let count = over.map(|(_, passes)| passes.count).sum();
                match counts.last_mut() {
                    Some((layers, same)) if *same == count && layers.1 == from => layers.1 = to,
                    _ => counts.push(((from, to), count)),
                }
            }
            let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(0);
            let Some(&((from, to), least)) = counts.iter().min_by_key(|(_, count)| *count) else { continue };
            if least != most {
                let example = class.values().next().map(|passes| passes.first);
                let place = example.map_or_else(String::new, |range| self.trace.place(range));
                let label = example.map(|range| self.trace.label(range).to_owned());
                let (mode, tokens) = (mode.map_or("", Mode::name), tokens.unwrap_or(0));
                self.findings.add(Severity::Finding, || Finding {
                    severity: Severity::Finding,
                    place,
                    label,
                    text: format!(
                        "of the passes with mode={mode} tokens={tokens}, of which this is the first, layers {from}..{to} \
                         saw {least} and others {most}; expected the layer ranges of each pass to tile the model"
                    ),
                });
            }
        }
    }
}

/// The parts of `0..end` that no range covers.
fn gaps(ranges: &BTreeSet<(u32, u32)>, end: u32) -> Vec<(u32, u32)> {
    let mut gaps = Vec::new();
    let mut reached = 0;
    for &(from, to) in ranges {
        if from > reached {
            gaps.push((reached, from));
        }
        reached = reached.max(to);
    }
    if reached < end {
        gaps.push((reached, end));
    }
    gaps
}
