//! Which layers go where: what `--shards` and `--split` say, checked against the model.

use std::ops::Range;

use super::{Place, PlaceError};

/// A shard to be: its layers and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The layers, end exclusive.
    pub layers: Range<usize>,
    /// Where they are.
    pub place: Place,
}

/// A split that makes no sense for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// A place cannot be read.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A range cannot be read.
    #[error("'{0}' is no range of layers: write BEGIN..END, the end exclusive, as in 0..4")]
    NoRange(String),
    /// A weight cannot be read.
    #[error("'{0}' is no weight: write whole numbers above 0 with colons between, as in 3:5")]
    NoWeight(String),
    /// A shard would have no layers.
    #[error("shard {index} would have no layers: the model has {layers}, and every shard has at least one")]
    Empty {
        /// Which one, counted from 0.
        index: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A range does not begin where the one before it ends.
    #[error(
        "shard {index} begins at layer {begin}, but layer {next} comes next: ranges must follow each other"
    )]
    NotContiguous {
        /// Which one, counted from 0.
        index: usize,
        /// Where it begins.
        begin: usize,
        /// Where it should.
        next: usize,
    },
    /// The ranges end before or behind the model.
    #[error("the shards end at layer {end}, but the model has {layers} layers: cover them all")]
    NotCovering {
        /// Where the last one ends.
        end: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Some shards have a range and others have none.
    #[error("either every shard has a range of layers or none has (and --split or equal shares decide)")]
    Mixed,
    /// Ranges and weights.
    #[error("the shards have ranges of layers already: leave out --split, or the ranges")]
    Twice,
    /// Another number of weights than of shards.
    #[error(
        "--split has another number of weights ({weights}) than there are shards ({shards}): give one for each"
    )]
    Count {
        /// Weights.
        weights: usize,
        /// Shards.
        shards: usize,
    },
}

/// Reads `shards` (`[BEGIN..END@]PLACE` with commas between) and `split` (weights with colons between) for a
/// model of `layers` layers. Without `shards` every weight is a shard at `here`; without either the model is
/// one shard at `here`.
///
/// # Errors
/// [`SplitError`] unless the ranges follow each other, cover the model and are not empty.
pub fn split(
    shards: Option<&str>,
    weights: Option<&str>,
    here: &Place,
    layers: usize,
) -> Result<Vec<Placed>, SplitError> {
    let weights = weights.map(read_weights).transpose()?;
    let Some(shards) = shards else {
        let weights = weights.unwrap_or_else(|| vec![1]);
        let ranges = share(&weights, layers)?;
        return Ok(ranges.into_iter().map(|layers| Placed { layers, place: here.clone() }).collect());
    };
    let read: Vec<(Option<Range<usize>>, Place)> =
        entries(shards).into_iter().map(|entry| read_entry(&entry)).collect::<Result<_, _>>()?;
    let given: Vec<_> = read.iter().filter_map(|(range, _)| range.clone()).collect();
    let ranges = if given.is_empty() {
        let weights = weights.unwrap_or_else(|| vec![1; read.len()]);
        if weights.len() != read.len() {
            return Err(SplitError::Count { weights: weights.len(), shards: read.len() });
        }
        share(&weights, layers)?
    } else if given.len() < read.len() {
        return Err(SplitError::Mixed);
    } else if weights.is_some() {
        return Err(SplitError::Twice);
    } else {
        check(&given, layers)?;
        given
    };
    Ok(ranges.into_iter().zip(read).map(|(layers, (_, place))| Placed { layers, place }).collect())
}

/// The entries of a list whose paths may hold commas: an entry begins behind a comma where a range or a place
/// can be read.
fn entries(list: &str) -> Vec<String> {
    let mut entries: Vec<String> = Vec::new();
    for piece in list.split(',') {
        match entries.last_mut() {
            // A path goes on with what looks like no entry.
            Some(last) if last.contains("unix:") && !begins_an_entry(piece) => {
                last.push(',');
                last.push_str(piece);
            }
            _ => entries.push(piece.to_owned()),
        }
    }
    entries
}

fn begins_an_entry(piece: &str) -> bool {
    let piece = piece.trim_start();
    let range = piece.split_once('@').is_some_and(|(range, _)| read_range(range).is_ok());
    range || ["unix:", "tcp:", "spawn:", "cpu", "cuda", "hip"].iter().any(|place| piece.starts_with(place))
}

fn read_entry(entry: &str) -> Result<(Option<Range<usize>>, Place), SplitError> {
    let entry = entry.trim_start();
    match entry.split_once('@') {
        // An @ may also stand in a path.
        Some((range, place)) if !range.contains(':') => Ok((Some(read_range(range)?), read_place(place)?)),
        _ if entry.contains("..") && !entry.contains(':') => Err(SplitError::NoRange(entry.into())),
        _ => Ok((None, read_place(entry)?)),
    }
}

/// Spaces around a place are none of it. A path alone may end with one.
fn read_place(text: &str) -> Result<Place, PlaceError> {
    let text = text.trim_start();
    if text.starts_with("unix:") { text } else { text.trim_end() }.parse()
}

/// Reads `BEGIN..END`.
///
/// # Errors
/// [`SplitError::NoRange`].
pub fn read_range(text: &str) -> Result<Range<usize>, SplitError> {
    let wrong = || SplitError::NoRange(text.into());
    let (begin, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse().map_err(|_| wrong());
    Ok(number(begin)?..number(end)?)
}

fn read_weights(text: &str) -> Result<Vec<usize>, SplitError> {
    let weight = |piece: &str| match piece.trim().parse::<u32>() {
        Ok(weight) if weight > 0 => Ok(weight as usize),
        _ => Err(SplitError::NoWeight(piece.into())),
    };
    text.split(':').map(weight).collect()
}

/// Ranges in proportion to `weights`, each of at least one layer: every boundary is the nearest whole one
/// that leaves room for the others.
fn share(weights: &[usize], layers: usize) -> Result<Vec<Range<usize>>, SplitError> {
    let count = weights.len();
    if count > layers {
        return Err(SplitError::Empty { index: layers, layers });
    }
    let total: u128 = weights.iter().map(|weight| *weight as u128).sum();
    let (mut sum, mut begin) = (0_u128, 0);
    let mut ranges = Vec::with_capacity(count);
    for (index, weight) in weights.iter().enumerate() {
        sum += *weight as u128;
        let nearest = ((2 * sum * layers as u128 + total) / (2 * total)) as usize;
        let end = nearest.clamp(begin + 1, layers - (count - 1 - index));
        ranges.push(begin..end);
        begin = end;
    }
    Ok(ranges)
}

fn check(ranges: &[Range<usize>], layers: usize) -> Result<(), SplitError> {
    let mut next = 0;
    for (index, Range { start, end }) in ranges.iter().enumerate() {
        if *start != next {
            return Err(SplitError::NotContiguous { index, begin: *start, next });
        }
        if end <= start {
            return Err(SplitError::Empty { index, layers });
        }
        next = *end;
    }
    if next == layers { Ok(()) } else { Err(SplitError::NotCovering { end: next, layers }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(shards: Option<&str>, weights: Option<&str>) -> Result<Vec<String>, String> {
        let placed =
            split(shards, weights, &Place::Device("cpu".into()), 8).map_err(|error| error.to_string())?;
        Ok(placed.iter().map(|Placed { layers, place }| format!("{layers:?}@{place}")).collect())
    }

    #[test]
    fn ranges_and_places_are_given_or_shared_out() {
        let same = ["0..8@cpu"];
        assert_eq!(read(None, None).unwrap(), same);
        assert_eq!(read(Some("cpu"), None).unwrap(), same);
        let list = "0..4@cpu,4..6@unix:/run/a,b@c,6..7@spawn:cpu,7..8@tcp:localhost:70";
        assert_eq!(
            read(Some(list), None).unwrap(),
            ["0..4@cpu", "4..6@unix:/run/a,b@c", "6..7@spawn:cpu", "7..8@tcp:localhost:70"]
        );
        assert_eq!(read(None, Some("3:5")).unwrap(), ["0..3@cpu", "3..8@cpu"]);
        assert_eq!(read(Some("cpu,unix:/a"), Some("3:5")).unwrap(), ["0..3@cpu", "3..8@unix:/a"]);
        assert_eq!(read(Some("0..3@cpu, 3..8@spawn:cpu"), None).unwrap(), ["0..3@cpu", "3..8@spawn:cpu"]);
        assert_eq!(read(Some("0..3 @ cpu , 3..8@ tcp:h:1 "), None).unwrap(), ["0..3@cpu", "3..8@tcp:h:1"]);
        assert_eq!(read(Some("spawn:cpu ,cpu "), None).unwrap(), ["0..4@spawn:cpu", "4..8@cpu"]);
        assert_eq!(read(Some("unix:/a b , cpu"), None).unwrap(), ["0..4@unix:/a b ", "4..8@cpu"]);
        assert_eq!(read(Some("cpu,spawn:cpu"), None).unwrap(), ["0..4@cpu", "4..8@spawn:cpu"]);
        assert_eq!(
            read(None, Some("1:1000:1")).unwrap(),
            ["0..1@cpu", "1..7@cpu", "7..8@cpu"],
            "nobody is left without a layer"
        );
    }

    #[test]
    fn a_split_that_is_none_says_why() {
        let cases = [
            (Some("0..4@cpu,5..8@cpu"), None, "shard 1 begins at layer 5, but layer 4 comes next"),
            (Some("0..4@cpu,3..8@cpu"), None, "shard 1 begins at layer 3, but layer 4 comes next"),
            (Some("4..8@cpu,0..4@cpu"), None, "shard 0 begins at layer 4, but layer 0 comes next"),
            (Some("0..4@cpu,4..4@cpu,4..8@cpu"), None, "shard 1 would have no layers"),
            (Some("0..4@cpu"), None, "the shards end at layer 4, but the model has 8 layers"),
            (Some("0..9@cpu"), None, "the shards end at layer 9, but the model has 8 layers"),
            (Some("0..4@cpu,cpu"), None, "either every shard has a range of layers or none"),
            (Some("0..8@cpu"), Some("1"), "the shards have ranges of layers already"),
            (
                Some("cpu,cpu"),
                Some("1:2:3"),
                "--split has another number of weights (3) than there are shards (2)",
            ),
            (Some("0-4@cpu"), None, "'0-4' is no range of layers"),
            (Some("0..4"), None, "'0..4' is no range of layers"),
            (Some("0..8@"), None, "'' names nothing"),
            (Some(""), None, "'' names nothing"),
            (Some("0..8@tcp:nowhere"), None, "'tcp:nowhere' is no address"),
            (None, Some("3:0"), "'0' is no weight"),
            (None, Some("3;5"), "'3;5' is no weight"),
            (None, Some("1:1:1:1:1:1:1:1:1"), "shard 8 would have no layers"),
        ];
        for (shards, weights, says) in cases {
            let error = read(shards, weights).unwrap_err();
            assert!(error.starts_with(says), "{shards:?} {weights:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_weights_give_ranges_that_cover_the_model(
            weights in prop::collection::vec(1..u32::MAX as usize, 1..20), layers in 1..200_usize,
        ) {
            match share(&weights, layers) {
                Ok(ranges) => prop_assert_eq!(check(&ranges, layers), Ok(())),
                Err(_) => prop_assert!(weights.len() > layers),
            }
        }
    }
}
