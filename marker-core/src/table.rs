//! Labels that were formatted once and are kept for the life of the process.
//!
//! Fixed in size: a program that puts ever new numbers into its labels fills it and then formats on its
//! own stack, and nothing grows.

use spin::Once;

use crate::{Fields, Label};

/// How many labels the process-wide table can hold. A backend that registers labels with its tool needs
/// this many places, keyed by [`Label::slot`].
pub const TABLE_SLOTS: usize = 512;

/// How far a label may sit from the slot that its hash names. Bounds what a full table costs.
const PROBES: usize = 8;

static TABLE: [Once<Label>; TABLE_SLOTS] = [const { Once::new() }; TABLE_SLOTS];

/// The label for `fields`, formatted the first time and kept; `None` when its part of the table is full,
/// and then the caller formats it for itself.
#[inline]
pub fn intern(fields: &Fields) -> Option<&'static Label> {
    let home = fields.hash() as usize;
    if let Some(label) = TABLE[home % TABLE_SLOTS].get()
        && label.fields() == Some(fields)
    {
        return Some(label);
    }
    intern_slow(fields, home)
}

#[inline(never)]
fn intern_slow(fields: &Fields, home: usize) -> Option<&'static Label> {
    (0..PROBES).find_map(|probe| {
        let slot = home.wrapping_add(probe) % TABLE_SLOTS;
        // Whoever comes first fills the slot; the others see what it holds.
        let label = TABLE[slot].call_once(|| Label::in_slot(*fields, slot));
        (label.fields() == Some(fields)).then_some(label)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    extern crate std;

    #[test]
    fn a_label_is_formatted_once_and_ever_new_ones_do_not_grow_the_table() {
        let known = Fields::new(Scope::new("table.known")).tokens(3);
        let first = intern(&known).unwrap();
        let kept = (0..1_000_000_u64)
            .filter(|n| intern(&Fields::new(Scope::new("table.distinct")).tokens(*n)).is_some())
            .count();
        assert!(kept < TABLE_SLOTS, "{kept} labels were kept");
        let again = intern(&known).unwrap();
        assert!(core::ptr::eq(first, again));
        assert_eq!(again.as_str(), "table.known tokens=3");
        assert!(again.slot().unwrap() < TABLE_SLOTS);
    }

    #[test]
    fn threads_that_meet_in_the_table_get_the_same_label() {
        let fields = |n| Fields::new(Scope::new("table.race")).tokens(n);
        std::thread::scope(|threads| {
            let seen: std::vec::Vec<_> = (0..8)
                .map(|_| threads.spawn(|| core::array::from_fn::<_, 8, _>(|n| intern(&fields(n as u64)))))
                .collect();
            let seen: std::vec::Vec<_> = seen.into_iter().map(|thread| thread.join().unwrap()).collect();
            for labels in &seen {
                for (n, label) in labels.iter().enumerate() {
                    assert_eq!(label.map(|l| *l.fields().unwrap()), label.map(|_| fields(n as u64)));
                    assert!(label.map(core::ptr::from_ref) == seen[0][n].map(core::ptr::from_ref));
                }
            }
        });
    }
}
