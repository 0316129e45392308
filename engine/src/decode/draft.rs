//! Proposing tokens with the draft model.

use marker_core::{Fields, Markers, Phase, Scope, range};

use crate::device::{DeviceError, Path, Want};
use crate::shard::Chain;

/// Rows of a pass while the draft reads what it has not seen yet.
const CATCH_UP: usize = 256;

/// Proposes `count` tokens (at least one) to follow `text`, each the draft's greedy choice.
///
/// The draft's cache holds a prefix of `text`; it reads the rest first. Afterwards it holds all of `text`
/// and every proposed token but the last.
pub(super) fn propose(
    draft: &mut Chain,
    text: &[u32],
    count: usize,
    markers: Markers<'_>,
    proposed: &mut Vec<u32>,
) -> Result<(), DeviceError> {
    range!(markers.at_full_detail(), Fields::new(Scope::DRAFT).tokens(count as u64));
    proposed.clear();
    let mut next = 0;
    let unread = &text[draft.cached()..];
    for rows in unread.chunks(CATCH_UP) {
        // After a round one or two rows are unread; only the prompt is worth the large-matrix path.
        let path = if rows.len() > 16 { Path::Dense } else { Path::Decode };
        let want = Want::Tokens(rows.len() - 1..rows.len());
        next = pass(draft, path, rows, &want)?;
    }
    proposed.push(next);
    while proposed.len() < count {
        next = pass(draft, Path::Decode, &[next], &Want::Tokens(0..1))?;
        proposed.push(next);
    }
    Ok(())
}

/// Draft passes carry no leaf: the vocabulary's leaves count the target's work.
fn pass(draft: &mut Chain, path: Path, rows: &[u32], want: &Want) -> Result<u32, DeviceError> {
    let answer = draft.forward(Markers::OFF, Phase::Unspecified, path, rows, want)?;
    super::only(&answer.tokens)
}
