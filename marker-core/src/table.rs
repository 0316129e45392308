//! Labels that were formatted once and are kept for the life of the process.
//!
//! Fixed in size: a program that puts ever new numbers into its labels fills it and then formats on its
//! own stack, and nothing grows.
//!
//! A label lies at the place that its hash names, its home, so that a look-up is one comparison; or, where another came
//! first, at one of the eight places of the same bucket. One word a bucket holds a byte of each place's hash, so that a
//! look-up away from home, also one that finds nothing, reads that word and then compares one label, or none.

use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;

use crate::{Fields, Label};

/// How many labels the process-wide table can hold. A backend that registers labels with its tool needs
/// this many places, keyed by [`Label::slot`].
pub const TABLE_SLOTS: usize = 512;

/// Places of a bucket: as many as a word has bytes.
const PLACES: usize = 8;
const BUCKETS: usize = TABLE_SLOTS / PLACES;

static TABLE: [Once<Label>; TABLE_SLOTS] = [const { Once::new() }; TABLE_SLOTS];

/// A bucket's tags, the first place's in the lowest byte; zero for a place that is not known to be filled.
static TAGS: [AtomicU64; BUCKETS] = [const { AtomicU64::new(0) }; BUCKETS];

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The high bit of each byte that is zero. A byte above one that is zero may be marked though it is one.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & HIGHS
}

/// The label for `fields`, formatted the first time and kept; `None` when its part of the table is full,
/// and then the caller formats it for itself.
#[inline]
pub fn intern(fields: &Fields) -> Option<&'static Label> {
    at_home(fields).map_or_else(|hash| away(fields, hash), Some)
}

/// The label for `fields` if it is at home, else the hash with which to look for it [`away`] from there. To be inlined
/// where the fields are made, since most of them are constants there.
#[inline]
pub(crate) fn at_home(fields: &Fields) -> Result<&'static Label, u64> {
    let hash = fields.hash();
    match TABLE[home(hash)].get() {
        Some(label) if label.is_of(fields) => Ok(label),
        _ => Err(hash),
    }
}

/// Calls nothing on its way to a bucket that is full, so it saves no register for a label that is fresh.
#[inline(never)]
pub(crate) fn away(fields: &Fields, hash: u64) -> Option<&'static Label> {
    let bucket = home(hash) / PLACES;
    // Acquire: a tag is set when its label is there.
    let tags = TAGS[bucket].load(Ordering::Acquire);
    let candidates = zero_bytes(tags ^ (tag(hash) * ONES));
    if candidates != 0 {
        return candidate(fields, hash, bucket * PLACES + candidates.trailing_zeros() as usize / 8);
    }
    if zero_bytes(tags) == 0 { None } else { search(fields, hash) }
}

/// The label in a slot whose tag is right. Its scope may be another crate's copy of the same name, which has an address
/// of its own, so that it was not known at home.
#[inline(never)]
fn candidate(fields: &Fields, hash: u64, slot: usize) -> Option<&'static Label> {
    match TABLE[slot].get() {
        Some(label) if label.fields() == Some(fields) => Some(label),
        _ => search(fields, hash),
    }
}

/// The place where a label lies if it came there first: the high bits of a product are its best.
#[inline]
const fn home(hash: u64) -> usize {
    (hash >> (u64::BITS - TABLE_SLOTS.ilog2())) as usize
}

#[inline]
const fn tag(hash: u64) -> u64 {
    (hash >> 46) & 0xff | 1
}

/// Looks at every place of the bucket, the label's home first, and takes the first that is free.
#[cold]
#[inline(never)]
fn search(fields: &Fields, hash: u64) -> Option<&'static Label> {
    let home = home(hash);
    (0..PLACES).find_map(|step| {
        let place = (home + step) % PLACES;
        let slot = home / PLACES * PLACES + place;
        // Whoever comes first fills the place; the others see what it holds.
        let label = TABLE[slot].call_once(|| Label::in_slot(*fields, slot));
        (label.fields() == Some(fields)).then(|| {
            TAGS[home / PLACES].fetch_or(tag(hash) << (8 * place), Ordering::Release);
            label
        })
    })
}

const _: () = assert!(TABLE_SLOTS.is_power_of_two(), "bits of the hash choose the place");

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
        let copy = std::boxed::Box::leak(std::string::String::from("table.known").into_boxed_str());
        let elsewhere = intern(&Fields::new(Scope::new(copy)).tokens(3)).unwrap();
        assert!(core::ptr::eq(first, elsewhere), "the same name at another address");
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
