//! Rows in fixed point, for products with quantised weights: sixteen bits an input and a scale for each 32.
//!
//! The largest of 32 inputs becomes [`MOST`], so that each is off by at most one part in 65,000 of it: a hundred
//! times less than the weights themselves were off when they were quantised to eight bits. A row's numbers depend
//! on that row alone, whatever others a pass has.

#![forbid(unsafe_code)]

use super::blocks::GROUP;

/// The largest whole number: as much as two bytes with a sign make, `256 * 127 + 127`.
const MOST: f32 = 32_639.0;
/// Groups of smaller numbers count as zeros, whose scale could not be inverted.
const LEAST: f32 = 1e-30;

/// Words of four bytes in a group.
const QUADS: usize = GROUP / 4;

/// 32 inputs of a row. Input `8 * e + 2 * j + p`, which is `unit * (256 * high + low)`, is byte `j` of word `2 * e + p` of
/// each plane: the order in which the weights are.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
pub(super) struct Fixed {
    pub(super) high: [i32; QUADS],
    pub(super) low: [i32; QUADS],
    /// What one is worth; NaN where an input is not finite.
    pub(super) unit: f32,
    /// The sum of the inputs.
    pub(super) sum: f32,
    /// The same, whole numbers, of the first sixteen and of the others.
    whole: [i32; 2],
}

impl Fixed {
    /// Zeros.
    pub(super) const ZERO: Self =
        Fixed { high: [0; QUADS], low: [0; QUADS], unit: 0.0, sum: 0.0, whole: [0; 2] };

    /// Notes the scale, and the sums of both sixteens.
    #[inline]
    pub(super) fn finish(&mut self, unit: f32, whole: [i32; 2]) {
        self.unit = unit;
        self.whole = whole;
        self.sum = unit * (whole[0] + whole[1]) as f32;
    }

    /// The whole numbers' sum of part `run` of `runs`, one or two.
    #[inline]
    pub(super) fn sum_of(&self, run: usize, runs: usize) -> i32 {
        if runs == 1 { self.whole[0] + self.whole[1] } else { self.whole[run] }
    }
}

/// What one is worth where the largest input has these bits, its sign taken off, and how many ones an input is.
#[inline]
pub(super) fn scale(largest: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < LEAST {
        (0.0, 0.0)
    } else {
        (largest / MOST, MOST / largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::isa::Isa;

    #[test]
    fn an_input_is_off_by_at_most_half_of_one() {
        for isa in Isa::all().into_iter().filter(|isa| isa.fixes()) {
            for size in [1e-25_f32, 1e-3, 1.0, 5e4, 1e30, f32::MAX] {
                let row: Vec<f32> = (0..128).map(|at| size * (at as f32 * 1.37).sin()).collect();
                let mut fixed = [Fixed::ZERO; 4];
                isa.fix(&row, &mut fixed);
                for (fixed, row) in fixed.iter().zip(row.chunks(GROUP)) {
                    let mut whole = [0; 2];
                    for (at, x) in row.iter().enumerate() {
                        let (word, byte) = (at / 8 * 2 + at % 2, at % 8 / 2);
                        let [high, low] = [fixed.high, fixed.low]
                            .map(|plane| i32::from(plane[word].to_le_bytes()[byte].cast_signed()));
                        let number = 256 * high + low;
                        whole[at / 16] += number;
                        let (unit, number) = (f64::from(fixed.unit), f64::from(number));
                        assert!(
                            (number * unit - f64::from(*x)).abs() <= 0.501 * unit,
                            "{x}: {number} of {unit}"
                        );
                    }
                    assert_eq!([fixed.sum_of(0, 2), fixed.sum_of(1, 2)], whole);
                    let exact = f64::from(whole[0] + whole[1]) * f64::from(fixed.unit);
                    assert!((f64::from(fixed.sum) - exact).abs() <= 1e-6 * exact.abs());
                }
            }
        }
    }
}
