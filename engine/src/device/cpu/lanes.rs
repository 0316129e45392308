//! Arithmetic element by element, sixteen values at a time.
//!
//! Plain Rust that the compiler turns into vectors of whichever instruction set it is inlined into (see
//! [`super::isa`]). No operation here is fused or reordered, so every instruction set gives the same bits,
//! and sums run in one order that depends on the length alone.

#![forbid(unsafe_code)]
#![expect(clippy::inline_always, reason = "to be compiled for the caller's instruction set")]

use super::packed::LANES;

/// Sixteen values.
pub(super) type Lanes = [f32; LANES];

/// `e^x` within 1.5 units in the last place; 0 below the smallest normal number, 2^127 or so at the most.
#[inline(always)]
fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to a whole number, which then sits in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// The natural logarithm of 2 in two parts, the first short enough for exact products.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let tiny = x < -87.33;
    let x = if x < -87.33 { -87.33 } else { x };
    let x = if x > 88.02 { 88.02 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let rest = x - whole * LN2_HIGH - whole * LN2_LOW;
    // Cephes' polynomial for e^rest, |rest| <= ln 2 / 2.
    let mut sum = 1.987_569_1e-4;
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        sum = sum * rest + factor;
    }
    let value = sum * (rest * rest) + rest + 1.0;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    let value = value * power;
    if tiny { 0.0 } else { value }
}

/// The `f32` that the bits of an IEEE half mean: exact, a NaN made quiet, as processors do it.
#[inline(always)]
pub(super) fn widen(half: u32) -> f32 {
    /// What a half's exponent needs to be that of a single.
    const REBIAS: u32 = (127 - 15) << 23;
    /// 2^-14, the smallest normal half.
    const SMALLEST: u32 = REBIAS + (1 << 23);
    /// Infinity before the exponent is put right.
    const INFINITY: u32 = 0x7c00 << 13;
    let magnitude = (half & 0x7fff) << 13;
    // Below the normal numbers there is no hidden bit: it is put there and taken away as a number.
    let subnormal = f32::from_bits(magnitude | SMALLEST) - f32::from_bits(SMALLEST);
    let normal = magnitude + REBIAS;
    let rebias = if magnitude >= INFINITY { REBIAS } else { 0 };
    let quiet = if magnitude > INFINITY { 1 << 22 } else { 0 };
    let bits = if magnitude < 1 << 23 { subnormal.to_bits() } else { normal };
    f32::from_bits((bits + rebias) | quiet | (half & 0x8000) << 16)
}

/// `gate * sigmoid(gate) * up`, in place of `gate`.
#[inline(always)]
pub(super) fn swiglu(gate: &mut Lanes, up: &Lanes) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

/// Turns `scores`, whole groups of lanes of which the first `len` count, into `e^(scale * (score - largest))`
/// and returns their sum. What lies behind `len` becomes 0.
#[inline(always)]
pub(super) fn soften(scores: &mut [f32], len: usize, scale: f32) -> f32 {
    scores[len..].fill(f32::NEG_INFINITY);
    let (scores, _) = scores.as_chunks_mut::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    for lanes in &mut *scores {
        for (score, largest) in lanes.iter_mut().zip(&mut largest) {
            *score *= scale;
            *largest = if *score > *largest { *score } else { *largest };
        }
    }
    let largest = fold(largest, |a, b| if a > b { a } else { b });
    let mut sum = [0.0; LANES];
    for lanes in scores {
        for (score, sum) in lanes.iter_mut().zip(&mut sum) {
            *score = exp(*score - largest);
            *sum += *score;
        }
    }
    fold(sum, |a, b| a + b)
}

/// `weight * x / sqrt(mean(x^2) + epsilon)`.
#[inline(always)]
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let (lanes, rest) = x.as_chunks::<LANES>();
    let mut sum = [0.0; LANES];
    for lanes in lanes {
        for (sum, x) in sum.iter_mut().zip(lanes) {
            *sum += x * x;
        }
    }
    for (sum, x) in sum.iter_mut().zip(rest) {
        *sum += x * x;
    }
    let scale = 1.0 / (fold(sum, |a, b| a + b) / x.len() as f32 + epsilon).sqrt();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = weight * (x * scale);
    }
}

/// The sixteen values as one, in a fixed order.
#[inline(always)]
fn fold(lanes: Lanes, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = lanes;
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            lanes[at] = join(lanes[at], lanes[at + half]);
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "the same bits are what is asked for")]

    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut x = -87.3f32;
        while x < 88.0 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 1.5 * f64::from(f32::EPSILON), "exp({x}) is off by {error}");
            x += 0.0173;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn every_half_widens_to_the_bits_that_another_implementation_gives() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            assert_eq!(widen(u32::from(bits)).to_bits(), expected.to_bits(), "{bits:#06x}");
        }
    }

    #[test]
    fn soften_is_the_numerator_of_softmax() {
        for len in 1..40usize {
            let mut scores: Vec<f32> =
                (0..len.next_multiple_of(LANES)).map(|at| (at as f32 * 7.3).sin() * 20.0).collect();
            let exact: Vec<f64> = scores[..len].iter().map(|&score| f64::from(score) * 0.125).collect();
            let largest = exact.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = soften(&mut scores, len, 0.125);
            let total: f64 = exact.iter().map(|score| (score - largest).exp()).sum();
            assert!((f64::from(sum) - total).abs() < 1e-6 * total);
            for (score, exact) in scores.iter().zip(&exact) {
                assert!((f64::from(*score) - (exact - largest).exp()).abs() < 1e-6);
            }
            assert!(scores[len..].iter().all(|&score| score == 0.0));
        }
    }

    #[test]
    fn swiglu_of_large_gates_is_finite() {
        let mut gate =
            [-1e30, -100.0, -90.0, -1.0, -0.0, 0.0, 1.0, 2.0, 90.0, 100.0, 1e30, 3.0, 4.0, 5.0, 6.0, 7.0];
        let before = gate;
        swiglu(&mut gate, &[2.0; LANES]);
        for (value, x) in gate.iter().zip(before) {
            let x = f64::from(x);
            let exact = x / (1.0 + (-x).exp()) * 2.0;
            assert!((f64::from(*value) - exact).abs() <= 4e-7 * exact.abs() + 1e-7, "{x}: {value}, {exact}");
        }
    }

    #[test]
    fn rms_norm_against_f64() {
        for len in 1..70usize {
            let x: Vec<f32> = (0..len).map(|at| (at as f32 * 1.7).sin() * 3.0).collect();
            let weight: Vec<f32> = (0..len).map(|at| (at as f32 * 0.3).cos()).collect();
            let mut out = vec![0.0; len];
            rms_norm(&x, &weight, 1e-5, &mut out);
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / len as f64;
            for at in 0..len {
                let exact = f64::from(weight[at]) * f64::from(x[at]) / (mean + 1e-5).sqrt();
                assert!((f64::from(out[at]) - exact).abs() < 2e-6);
            }
        }
    }
}
