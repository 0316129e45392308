//! Whether hidden state is numbers at all. NaN and infinity spread over all that follows, so what holds them is told
//! where it comes from: at the end of the model nobody could say whose it was.

/// The first row of `hidden`, `[rows, width]`, that holds NaN or infinity.
pub(super) fn no_numbers(hidden: &[f32], width: usize) -> Option<usize> {
    if sum(hidden).is_finite() {
        return None;
    }
    // Or it is the sum alone that no `f32` can hold.
    hidden.chunks(width.max(1)).position(|row| !row.iter().all(|value| value.is_finite()))
}

/// A sum that is finite only where all of `values` are: what is not stays so, whatever is added. One addition a value and
/// nothing else, many side by side, so that it costs little beside bringing them here.
fn sum(values: &[f32]) -> f32 {
    const LANES: usize = 32;
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        sums.iter_mut().zip(chunk).for_each(|(sum, value)| *sum += value);
    }
    sums.iter().chain(rest).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: [f32; 4] = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

    #[test]
    fn numbers_are_numbers_however_large() {
        for value in [0.0, -0.0, f32::MIN_POSITIVE / 2.0, 1.0, f32::MAX, f32::MIN] {
            assert_eq!(no_numbers(&[value; 300], 100), None, "{value}");
        }
        assert_eq!(no_numbers(&[], 4), None);
    }

    #[test]
    fn infinities_of_both_signs_do_not_make_up_for_each_other() {
        let mut hidden = vec![1.0; 200];
        (hidden[150], hidden[182]) = (f32::INFINITY, f32::NEG_INFINITY);
        assert_eq!(no_numbers(&hidden, 100), Some(1));
    }

    proptest! {
        #[test]
        fn one_value_that_is_none_is_found_wherever_it_is(
            rows in 1..6_usize, width in 1..80_usize, at in any::<prop::sample::Index>(), none in prop::sample::select(&NONE[..]),
            value in prop::num::f32::NORMAL,
        ) {
            let mut hidden = vec![value; rows * width];
            prop_assert_eq!(no_numbers(&hidden, width), None);
            let at = at.index(hidden.len());
            hidden[at] = none;
            prop_assert_eq!(no_numbers(&hidden, width), Some(at / width));
        }
    }
}
