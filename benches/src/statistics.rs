//! What few noisy numbers are worth: medians, spread, and how sure a difference is.

/// The middle value, the mean of the two middle ones of an even count; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// The median distance from the median.
pub fn mad(values: &[f64]) -> f64 {
    let middle = median(values);
    median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<_>>())
}

/// The lowest and the highest value.
pub fn range(values: &[f64]) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)))
}

/// Resamples of a bootstrap.
const RESAMPLES: usize = 10_000;

/// Fewer pairs give no 95 % interval: not even the whole range of five holds the median so surely.
pub const LEAST_PAIRS: usize = 6;

/// How surely the range of `count` values holds the median of what they were drawn from: it does not where all fall
/// on the same side of it.
pub fn range_confidence(count: usize) -> f64 {
    match i32::try_from(count) {
        Ok(0) => 0.0,
        Ok(count) => 1.0 - 2.0_f64.powi(1 - count),
        Err(_) => 1.0,
    }
}

/// The interval that holds the median of what `values` were drawn from, with 95 % confidence: the percentiles of
/// the medians of resamples. The resamples are the same each time, so equal values give equal intervals.
/// Of a dozen values it holds it a few times in a hundred less often than it says.
pub fn bootstrap(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut random = SplitMix(0x5eed);
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| median(&values.iter().map(|_| values[random.below(values.len())]).collect::<Vec<_>>()))
        .collect();
    medians.sort_by(f64::total_cmp);
    (medians[RESAMPLES * 25 / 1000], medians[RESAMPLES * 975 / 1000 - 1])
}

/// Steele, Lea and Flood's generator: enough to draw resamples.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

/// What paired differences say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The median of the differences.
    pub median: f64,
    /// Where it lies with 95 % confidence, by a bootstrap; none of fewer than [`LEAST_PAIRS`].
    pub interval: Option<(f64, f64)>,
    /// The least and the most of the differences.
    pub range: (f64, f64),
}

impl Difference {
    /// Of `on - off`, pair by pair.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let differences: Vec<f64> = pairs.iter().map(|(off, on)| on - off).collect();
        Difference {
            median: median(&differences),
            interval: (pairs.len() >= LEAST_PAIRS).then(|| bootstrap(&differences)),
            range: range(&differences),
        }
    }

    /// Half the interval's width: what is smaller than this was not seen.
    pub fn half_width(&self) -> Option<f64> {
        self.interval.map(|(low, high)| (high - low) / 2.0)
    }

    /// Whether the median is no claim: there is no interval, or it is wider than the effect.
    pub fn is_noise(&self) -> bool {
        self.half_width().is_none_or(|half| {
            self.median.abs().partial_cmp(&(2.0 * half)) != Some(std::cmp::Ordering::Greater)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    #[test]
    fn medians_do_not_mind_an_outlier() {
        close(median(&[3.0, 1.0, 900.0]), 3.0);
        close(median(&[4.0, 1.0, 2.0, 900.0]), 3.0);
        close(mad(&[1.0, 2.0, 3.0, 4.0, 900.0]), 1.0);
        assert_eq!(range(&[2.0, -1.0, 5.0]), (-1.0, 5.0));
        assert!(median(&[]).is_nan() && bootstrap(&[]).0.is_nan());
    }

    #[test]
    fn equal_differences_are_certain_and_large_ones_are_an_effect() {
        let sure = Difference::of(&[(10.0, 12.0), (11.0, 13.0), (12.0, 14.0)].repeat(2));
        close(sure.median, 2.0);
        close(sure.half_width().unwrap(), 0.0);
        assert!(!sure.is_noise());
    }

    #[test]
    fn an_interval_wider_than_the_effect_is_noise() {
        let pairs = [(10.0, 11.0), (10.0, 8.0), (10.0, 13.0), (10.0, 9.5), (10.0, 10.5), (10.0, 10.1)];
        let noisy = Difference::of(&pairs);
        let (low, high) = noisy.interval.unwrap();
        assert!(low < 0.0 && high > 0.0, "{noisy:?}");
        assert!(noisy.is_noise());
        let same = Difference::of(&[(10.0, 10.0); 6]);
        close(same.median, 0.0);
        assert!(same.is_noise(), "no effect is no claim of one");
        assert!(Difference::of(&[]).is_noise());
    }

    #[test]
    fn few_pairs_have_a_range_and_no_interval() {
        for pairs in 1..LEAST_PAIRS {
            let few = Difference::of(&vec![(10.0, 12.0); pairs]);
            assert!(few.interval.is_none() && few.half_width().is_none() && few.is_noise(), "{few:?}");
            assert_eq!(few.range, (2.0, 2.0));
            assert!(range_confidence(pairs) < 0.95);
        }
        assert!(Difference::of(&[(10.0, 12.0); LEAST_PAIRS]).interval.is_some());
        assert!(range_confidence(LEAST_PAIRS) >= 0.95);
    }

    #[test]
    fn a_range_holds_the_median_as_often_as_it_says() {
        // Each value is on either side of the median; the range holds it where not all are on one.
        for count in 1..=10 {
            let all: u32 = 1 << count;
            let held = (0..all).filter(|sides| *sides != 0 && *sides != all - 1).count();
            close(range_confidence(count as usize), held as f64 / f64::from(all));
        }
        close(range_confidence(0), 0.0);
    }

    #[test]
    fn the_interval_covers_what_it_says_it_does() {
        // A uniform spread around 1: the interval of its sample holds 1 and is narrower than the sample.
        let mut random = SplitMix(7);
        let values: Vec<f64> = (0..41).map(|_| random.below(1001) as f64 / 500.0).collect();
        let (low, high) = bootstrap(&values);
        assert!(low <= 1.0 && 1.0 <= high, "{low} {high}");
        let (least, most) = range(&values);
        assert!(least < low && high < most);
        assert_eq!(bootstrap(&values), bootstrap(&values), "it repeats");
        assert!((0..10_000).all(|_| random.below(3) < 3));
    }
}
