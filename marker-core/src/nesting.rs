//! Which ranges are open on one thread, so that a backend pops exactly what it pushed.
//!
//! The tools only know "pop the top one": ROCTX of ROCm 6.3 even aborts the process on a pop too many.
//! Guards are dropped out of order or forgotten all the same. Each backend keeps one [`Nesting`] a thread
//! and lets it decide how many pops a guard is worth.

use core::cell::Cell;

use crate::Token;

/// Open ranges whose identity is kept. Deeper ones are only counted.
const TRACKED: usize = 62;

/// The open push/pop ranges of one thread in one backend.
///
/// The range that is popped ends together with everything above it, which can only be ranges that were
/// forgotten or are about to be dropped out of order. A range that ended that way owes no pop any more.
/// So pops equal pushes, children lie within parents, and later ranges stay right.
///
/// Put it in a `thread_local!` with `const { Nesting::new() }`: it needs no destructor, so it can be used
/// during thread and process teardown.
#[derive(Debug)]
#[repr(C)]
pub struct Nesting {
    depth: Cell<u32>,
    /// The token of the range at each level, or of the last one that was there.
    levels: [Cell<u16>; TRACKED],
}

/// A token is six bits of level, from 1, and above them ten that count the pushes at that level. So it is never zero, and
/// a level's next token is an addition away.
const LEVEL_BITS: u32 = 6;
const NEXT: u16 = 1 << LEVEL_BITS;
const LEVEL: u16 = NEXT - 1;
/// The level of all that are only counted.
const UNTRACKED: Token = Token::new(LEVEL);

const _: () =
    assert!(TRACKED + 1 == LEVEL as usize, "a level for each that is tracked, and one for the others");

impl Nesting {
    /// Nothing is open.
    pub const fn new() -> Self {
        let mut levels = [const { Cell::new(0) }; TRACKED];
        let mut at = 0;
        while at < TRACKED {
            levels[at] = Cell::new(at as u16 + 1);
            at += 1;
        }
        Nesting { depth: Cell::new(0), levels }
    }

    /// How many ranges are open.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// A push took: the token that names it.
    #[inline]
    pub fn push(&self) -> Token {
        let depth = self.depth.get();
        self.depth.set(depth + 1);
        match self.levels.get(depth as usize) {
            Some(level) => {
                level.set(level.get().wrapping_add(NEXT));
                Token::new(level.get())
            }
            None => UNTRACKED,
        }
    }

    /// How many pops `token` is worth now: none if its range has ended already, more than one if ranges
    /// above it were left open. The caller sends that many.
    #[inline]
    pub fn pop(&self, token: Token) -> u32 {
        let top = self.depth.get().wrapping_sub(1);
        match self.levels.get(top as usize) {
            // The top one, at a level that is tracked: nearly every pop.
            Some(level) if level.get() == token.bits() => {
                self.depth.set(top);
                1
            }
            _ => self.pop_another(token),
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_another(&self, token: Token) -> u32 {
        let level = u32::from(token.bits() & LEVEL);
        let depth = self.depth.get();
        // Level 0 is in no token that was given out: the one that was not taken, or one that somebody made up.
        if level == 0 || depth < level {
            return 0;
        }
        let keep = match self.levels.get(level as usize - 1) {
            Some(open) if open.get() == token.bits() => level - 1,
            Some(_) => return 0,
            // Too deep to know which one it is: the top one.
            None => depth - 1,
        };
        self.depth.set(keep);
        depth - keep
    }
}

impl Default for Nesting {
    fn default() -> Self {
        Nesting::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn in_order_every_push_is_worth_one_pop() {
        let nesting = Nesting::new();
        for _ in 0..3000 {
            let (a, b) = (nesting.push(), nesting.push());
            assert!(a.is_taken() && b.is_taken());
            assert_eq!((nesting.pop(b), nesting.pop(a)), (1, 1));
        }
        assert_eq!(nesting.depth(), 0);
    }

    #[test]
    fn out_of_order_the_outer_one_takes_the_inner_one_with_it() {
        let nesting = Nesting::new();
        let (outer, inner) = (nesting.push(), nesting.push());
        assert_eq!(nesting.pop(outer), 2);
        let (c, d) = (nesting.push(), nesting.push());
        assert_eq!(nesting.pop(inner), 0, "its range has ended, and d has its place now");
        assert_eq!((nesting.pop(d), nesting.pop(c)), (1, 1));
    }

    #[test]
    fn a_token_of_an_earlier_range_at_the_same_level_is_worth_nothing() {
        let nesting = Nesting::new();
        let parent = nesting.push();
        let earlier = nesting.push();
        assert_eq!(nesting.pop(earlier), 1);
        for _ in 0..1000 {
            let now = nesting.push();
            assert_eq!(nesting.pop(earlier), 0);
            assert_eq!(nesting.pop(now), 1);
        }
        assert_eq!(nesting.pop(parent), 1);
    }

    #[test]
    fn a_forgotten_range_ends_with_its_parent() {
        let nesting = Nesting::new();
        let parent = nesting.push();
        let _forgotten = nesting.push();
        assert_eq!(nesting.pop(parent), 2);
        assert_eq!(nesting.depth(), 0);
    }

    #[test]
    fn what_did_not_take_is_worth_nothing() {
        let nesting = Nesting::new();
        let open = nesting.push();
        assert_eq!(nesting.pop(Token::NOT_TAKEN), 0);
        assert_eq!(nesting.pop(open), 1);
        assert_eq!(nesting.pop(open), 0, "twice");
        for made_up in [64, 128, u16::MAX << 6] {
            assert_eq!(nesting.pop(Token::new(made_up)), 0, "no level");
        }
        assert_eq!(nesting.depth(), 0);
    }

    #[test]
    fn very_deep_ranges_are_counted() {
        let nesting = Nesting::new();
        let tokens: Vec<_> = (0..1000).map(|_| nesting.push()).collect();
        for token in tokens.into_iter().rev() {
            assert_eq!(nesting.pop(token), 1);
        }
        assert_eq!(nesting.depth(), 0);
    }

    proptest! {
        #[test]
        fn pops_never_exceed_pushes(steps in proptest::collection::vec(any::<(bool, u8)>(), 0..400)) {
            let nesting = Nesting::new();
            let (mut tokens, mut pushes, mut pops) = (Vec::new(), 0_u32, 0_u32);
            for (push, which) in steps {
                if push || tokens.is_empty() {
                    tokens.push(nesting.push());
                    pushes += 1;
                } else {
                    let token = tokens.remove(usize::from(which) % tokens.len());
                    pops += nesting.pop(token);
                }
                prop_assert_eq!(pushes - pops, nesting.depth());
            }
            if let Some(first) = tokens.first() {
                pops += nesting.pop(*first);
            }
            prop_assert!(pops <= pushes);
        }
    }
}
