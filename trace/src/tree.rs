//! The phase tree, folded: ranges with the same label inside the same parent are one line.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::gpu::{Attribution, attribute};
use crate::model::{Kind, Range, Trace, duration, printable};
use crate::nest::Nest;

/// One line of the tree.
#[derive(Debug, Default)]
pub struct Node {
    /// Index of the label.
    pub label: u32,
    /// How many ranges.
    pub count: u64,
    /// Their time together, in nanoseconds.
    pub total: i64,
    /// The shortest, in nanoseconds.
    pub shortest: i64,
    /// The longest, in nanoseconds.
    pub longest: i64,
    /// Device work given to these ranges directly, in nanoseconds.
    pub device: i64,
    /// The lines inside, in the order in which they first begin.
    pub children: Vec<usize>,
}

/// The tree of one stack of ranges.
#[derive(Debug)]
pub struct Tree {
    /// Index of the thread.
    pub thread: u32,
    /// Nested, or the started and stopped ones, which have no depth.
    pub kind: Kind,
    /// How many ranges.
    pub ranges: u64,
    /// The greatest depth; 1 where nothing is inside anything.
    pub depth: usize,
    /// All lines; the first is the root and stands for no range.
    pub nodes: Vec<Node>,
}

/// Builds a tree for every thread that has ranges.
pub fn trees(trace: &Trace, attribution: &Attribution) -> Vec<Tree> {
    let mut device = HashMap::new();
    for (owner, activity) in attribution.owners.iter().zip(&trace.activities) {
        if let Some(range) = owner.range() {
            let time: &mut i64 = device.entry(range).or_default();
            *time = time.saturating_add(activity.duration());
        }
    }
    let mut trees = Vec::new();
    let mut from = 0;
    for kind in [Kind::Nested, Kind::Free] {
        for ranges in trace.of_kind(kind).chunk_by(|a, b| a.thread == b.thread) {
            trees.push(tree(ranges, kind, |at| device.get(&(from + at)).copied().unwrap_or(0)));
            from += ranges.len();
        }
    }
    trees
}

fn tree(ranges: &[Range], kind: Kind, device: impl Fn(usize) -> i64) -> Tree {
    let mut nodes = vec![Node::default()];
    let mut index: HashMap<(usize, u32), usize> = HashMap::new();
    let mut nest = Nest::new(ranges);
    // The lines of the ranges that are open.
    let mut path: Vec<usize> = Vec::new();
    let mut depth = 0;
    for (at, range) in ranges.iter().enumerate() {
        if kind == Kind::Nested {
            path.truncate(nest.enter(at).depth);
        } else {
            path.clear();
        }
        let parent = path.last().copied().unwrap_or(0);
        let node = *index.entry((parent, range.label)).or_insert_with(|| {
            nodes.push(Node { label: range.label, shortest: i64::MAX, ..Node::default() });
            nodes.len() - 1
        });
        if nodes[node].count == 0 {
            nodes[parent].children.push(node);
        }
        let line = &mut nodes[node];
        line.count += 1;
        line.total = line.total.saturating_add(range.duration());
        line.shortest = line.shortest.min(range.duration());
        line.longest = line.longest.max(range.duration());
        line.device = line.device.saturating_add(device(at));
        path.push(node);
        depth = depth.max(path.len());
    }
    Tree { thread: ranges[0].thread, kind, ranges: ranges.len() as u64, depth, nodes }
}

/// Writes every tree.
///
/// # Errors
/// What `out` says.
pub fn print(trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
    let attribution = attribute(trace);
    let mut last = None;
    for tree in trees(trace, &attribution) {
        let process = trace.threads[tree.thread as usize].process;
        if last != Some(process) {
            writeln!(out, "{}", trace.process_name(process))?;
            last = Some(process);
        }
        let kind = if tree.kind == Kind::Free { ", started and stopped" } else { "" };
        let ranges = if tree.ranges == 1 { "range" } else { "ranges" };
        writeln!(
            out,
            "  {}{kind}: {} {ranges}, depth {}",
            trace.thread_name(tree.thread),
            tree.ranges,
            tree.depth
        )?;
        // Depth-first without recursion: a hostile file nests as deep as it likes.
        let mut todo: Vec<(usize, usize)> =
            tree.nodes[0].children.iter().rev().map(|&node| (node, 2)).collect();
        while let Some((at, depth)) = todo.pop() {
            line(trace, &tree.nodes[at], depth, out)?;
            todo.extend(tree.nodes[at].children.iter().rev().map(|&node| (node, depth + 1)));
        }
    }
    let marks = trace.of_kind(Kind::Mark).len();
    if marks > 0 {
        writeln!(out, "marks: {marks}")?;
    }
    if !trace.activities.is_empty() {
        print_device(trace, &attribution, out)?;
    }
    Ok(())
}

/// Indentation stops growing here, so that a chain of a million ranges does not fill a disk with spaces.
const INDENT_MAX: usize = 40;

fn line(trace: &Trace, node: &Node, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let label = trace.labels.get(node.label);
    let label = if label.is_empty() { "(empty label)".to_owned() } else { printable(label) };
    write!(
        out,
        "{:indent$}{} x {label}  {}",
        "",
        node.count,
        duration(node.total),
        indent = 2 * depth.min(INDENT_MAX)
    )?;
    if node.count > 1 {
        let mean = node.total / i64::try_from(node.count).unwrap_or(i64::MAX);
        let (shortest, longest) = (duration(node.shortest), duration(node.longest));
        write!(out, " (mean {}, {shortest} to {longest})", duration(mean))?;
    }
    if node.device > 0 {
        write!(out, ", device {}", duration(node.device))?;
    }
    writeln!(out)
}

fn print_device(trace: &Trace, attribution: &Attribution, out: &mut dyn Write) -> io::Result<()> {
    use crate::gpu::Owner;
    writeln!(out, "device work: {} pieces", trace.activities.len())?;
    for phase in attribution.phases.iter().filter(|phase| phase.launches > 0) {
        let share = phase.share().map_or_else(String::new, |share| format!(", busy {:.1}%", share * 100.0));
        writeln!(
            out,
            "  {}: {} launches, device {}, host {}{share}, gap {}",
            printable(&phase.name),
            phase.launches,
            duration(phase.device),
            duration(phase.host),
            duration(phase.gap)
        )?;
    }
    for (what, owner) in
        [("launched outside any range", Owner::Outside), ("of unknown launch", Owner::Unknown)]
    {
        let (time, count) = attribution.total(trace, |of| of == owner);
        if count > 0 {
            writeln!(out, "  {what}: {count} pieces, device {}", duration(time))?;
        }
    }
    Ok(())
}
