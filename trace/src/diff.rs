//! Whether two traces show the same phases.
//!
//! Compared are forests of full labels, thread by thread, threads matched by what they hold. Times, ids,
//! marks and ranges outside `ds4.` do not count; what lies inside a foreign range counts where that range stands.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::model::{Kind, Range, Trace, printable};
use crate::nest::Nest;

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The same phases: ranges and threads that have any.
    Same {
        /// How many ranges of the vocabulary each trace holds.
        ranges: u64,
        /// On how many threads.
        threads: usize,
    },
    /// The first difference, in words.
    Different(String),
}

/// A range in a forest: how deep, and which label, numbered alike in both traces.
type Item = (u32, u32);

struct Forest<'t> {
    trace: &'t Trace,
    items: Vec<Item>,
    /// The ranges of the items.
    ranges: Vec<&'t Range>,
}

/// Compares two traces; `a` and `b` are called by these names in words.
pub fn diff(a: (&str, &Trace), b: (&str, &Trace)) -> Difference {
    let mut numbers = HashMap::new();
    let in_a = forests(a.1, &mut numbers);
    let mut in_b: Vec<Option<Forest<'_>>> = forests(b.1, &mut numbers).into_iter().map(Some).collect();
    let (ranges, threads) = (in_a.iter().map(|forest| forest.items.len() as u64).sum(), in_a.len());
    let mut by_hash: HashMap<u64, Vec<usize>> = HashMap::new();
    for (at, forest) in in_b.iter().enumerate().rev() {
        by_hash.entry(forest.as_ref().map_or(0, Forest::hash)).or_default().push(at);
    }
    let mut left = Vec::new();
    for forest in in_a {
        let candidates = by_hash.get_mut(&forest.hash());
        let same = candidates.and_then(|list| {
            let equal = |at: &usize| in_b[*at].as_ref().is_some_and(|other| other.items == forest.items);
            let found = list.iter().rposition(equal)?;
            Some(list.remove(found))
        });
        match same {
            Some(at) => in_b[at] = None,
            None => left.push(forest),
        }
    }
    let right: Vec<Forest<'_>> = in_b.into_iter().flatten().collect();
    match (left.first(), right.first()) {
        (None, None) => Difference::Same { ranges, threads },
        (Some(only), None) => Difference::Different(alone(a.0, b.0, only)),
        (None, Some(only)) => Difference::Different(alone(b.0, a.0, only)),
        (Some(first), Some(_)) => {
            // Of the threads without a twin, the likest is the one meant.
            const LOOKED_AT: usize = 64;
            let likest = right.iter().take(LOOKED_AT).max_by_key(|other| first.common(other));
            Difference::Different(likest.map_or_else(String::new, |other| words(a.0, first, b.0, other)))
        }
    }
}

impl Forest<'_> {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.items.hash(&mut hasher);
        hasher.finish()
    }

    fn common(&self, other: &Forest<'_>) -> usize {
        self.items.iter().zip(&other.items).take_while(|(a, b)| a == b).count()
    }

    fn thread(&self) -> String {
        self.ranges.first().map_or_else(String::new, |range| self.trace.thread_name(range.thread))
    }

    fn item(&self, at: usize) -> String {
        let (Some(range), Some((depth, _))) = (self.ranges.get(at), self.items.get(at)) else {
            return "nothing more".to_owned();
        };
        let label = printable(self.trace.label(range));
        let parent = (0..at).rev().find(|&before| self.items[before].0 + 1 == *depth && *depth > 0);
        let inside = parent.map_or_else(
            || "at the top".to_owned(),
            |parent| format!("inside {:?}", printable(self.trace.label(self.ranges[parent]))),
        );
        format!("{label:?} {inside} ({})", self.trace.place(range))
    }
}

fn alone(has: &str, lacks: &str, forest: &Forest<'_>) -> String {
    format!(
        "{has} has a thread more than {lacks}: {} with {} ranges, the first {}",
        forest.thread(),
        forest.items.len(),
        forest.item(0)
    )
}

fn words(name_a: &str, a: &Forest<'_>, name_b: &str, b: &Forest<'_>) -> String {
    let at = a.common(b);
    format!(
        "{} of {name_a} and {} of {name_b} part at range {}: {name_a} has {}, {name_b} has {}",
        a.thread(),
        b.thread(),
        at + 1,
        a.item(at),
        b.item(at)
    )
}

fn forests<'t>(trace: &'t Trace, numbers: &mut HashMap<String, u32>) -> Vec<Forest<'t>> {
    // A label's number, the same in both traces; none for labels that do not count.
    let of_label: Vec<Option<u32>> = trace
        .labels
        .iter()
        .map(|label| {
            label.starts_with("ds4.").then(|| {
                let next = numbers.len() as u32;
                *numbers.entry(label.to_owned()).or_insert(next)
            })
        })
        .collect();
    let mut forests = Vec::new();
    for kind in [Kind::Nested, Kind::Free] {
        for ranges in trace.of_kind(kind).chunk_by(|a, b| a.thread == b.thread) {
            let mut forest = Forest { trace, items: Vec::new(), ranges: Vec::new() };
            let mut nest = Nest::new(ranges);
            // For each open range, how many around it count, itself included.
            let mut counted: Vec<u32> = Vec::new();
            for (at, range) in ranges.iter().enumerate() {
                if kind == Kind::Nested {
                    counted.truncate(nest.enter(at).depth);
                } else {
                    counted.clear();
                }
                let depth = counted.last().copied().unwrap_or(0);
                let number = of_label[range.label as usize];
                if let Some(number) = number {
                    forest.items.push((depth, number));
                    forest.ranges.push(range);
                }
                counted.push(depth + u32::from(number.is_some()));
            }
            if !forest.items.is_empty() {
                forests.push(forest);
            }
        }
    }
    forests.sort_by_key(|forest| forest.ranges[0].start);
    forests
}
