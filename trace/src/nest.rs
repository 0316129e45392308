//! What lies inside what: ranges of one thread, taken in order, against a stack of those still open.

use crate::model::Range;

/// The stack of open ranges of one thread. Memory is the depth.
pub(crate) struct Nest<'t> {
    ranges: &'t [Range],
    open: Vec<usize>,
}

/// Where a range stands.
pub(crate) struct Place {
    /// How many are around it.
    pub(crate) depth: usize,
    /// A range that began before it and ended inside it.
    pub(crate) overlaps: Option<usize>,
}

impl<'t> Nest<'t> {
    /// `ranges` are those of one thread, ordered by start, outer before inner.
    pub(crate) fn new(ranges: &'t [Range]) -> Self {
        Nest { ranges, open: Vec::new() }
    }

    /// Enters the range at `index`; indices must come in order.
    pub(crate) fn enter(&mut self, index: usize) -> Place {
        let range = &self.ranges[index];
        while self.open.last().is_some_and(|&top| self.ranges[top].end <= range.start) {
            self.open.pop();
        }
        let mut overlaps = None;
        while let Some(&top) = self.open.last() {
            if self.ranges[top].end >= range.end {
                break;
            }
            overlaps = overlaps.or(Some(top));
            self.open.pop();
        }
        let place = Place { depth: self.open.len(), overlaps };
        self.open.push(index);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn ranges(spans: &[(i64, i64)]) -> Vec<Range> {
        let range = |&(start, end): &(i64, i64)| Range {
            start,
            end,
            label: 0,
            thread: 0,
            row: 0,
            source: 0,
            kind: Kind::Nested,
            open: false,
        };
        spans.iter().map(range).collect()
    }

    fn parents(spans: &[(i64, i64)]) -> Vec<(Option<usize>, Option<usize>)> {
        let ranges = ranges(spans);
        let mut nest = Nest::new(&ranges);
        let parent = |nest: &Nest<'_>| nest.open.len().checked_sub(2).map(|above| nest.open[above]);
        (0..ranges.len())
            .map(|at| {
                let overlaps = nest.enter(at).overlaps;
                (parent(&nest), overlaps)
            })
            .collect()
    }

    #[test]
    fn a_child_lies_within_and_a_sibling_begins_where_the_last_ended() {
        assert_eq!(
            parents(&[(0, 10), (1, 4), (4, 10), (4, 5), (10, 12)]),
            [(None, None), (Some(0), None), (Some(0), None), (Some(2), None), (None, None)]
        );
        assert_eq!(parents(&[(0, 5), (0, 5)]), [(None, None), (Some(0), None)], "equal spans nest in order");
        assert_eq!(parents(&[(0, 5), (0, 0), (5, 5)]), [(None, None), (Some(0), None), (None, None)]);
    }

    #[test]
    fn a_range_that_outlives_the_one_it_began_in_overlaps_it() {
        assert_eq!(
            parents(&[(0, 20), (1, 5), (3, 8), (4, 6)]),
            [(None, None), (Some(0), None), (Some(0), Some(1)), (Some(2), None)]
        );
    }
}
