//! Which drafted tokens stand: the one place where agreement is decided.

/// How many of `drafted`, from the first on, the target would have said itself. `said[i]` is its choice
/// where `drafted[i]` was proposed.
pub(super) fn agreeing(drafted: &[u32], said: &[u32]) -> usize {
    drafted.iter().zip(said).take_while(|(drafted, said)| drafted == said).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_agreeing_prefix_counts_and_nothing_behind_it() {
        assert_eq!(agreeing(&[], &[7]), 0);
        assert_eq!(agreeing(&[1, 2, 3], &[1, 2, 3, 4]), 3);
        assert_eq!(agreeing(&[1, 2, 3], &[1, 9, 3, 4]), 1);
        assert_eq!(agreeing(&[1, 2, 3], &[9, 2, 3, 4]), 0);
    }
}
