//! Asking the target about drafted tokens, a block in one pass or one row a pass, and emitting what stands.
//!
//! Whatever the mode, what is emitted is what the target says after each row up to and including the
//! first disagreement, unless the text ends before that.

use marker_core::{Fields, Markers, Phase, Scope, range};

use super::accept::Chooser;
use super::draft::Block;
use super::{Output, Verify};
use crate::device::{DeviceError, Path, Proposed};
use crate::shard::{Chain, ShardError, Why};

/// What verifying a block gave.
pub(super) struct Verified {
    /// Drafted tokens that were emitted.
    pub(super) accepted: usize,
    /// Whether the drafted token behind those was judged and did not stand.
    pub(super) rejected: bool,
    /// Target passes that it took.
    pub(super) passes: usize,
}

/// Verifies `block`, the tokens drafted behind the last emitted one.
pub(super) fn verify(
    target: &mut Chain,
    mode: Verify,
    block: &Block,
    chooser: &mut Chooser,
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    let proposed = match block {
        Block::Seen(proposed) => proposed,
        Block::Unseen(proposed) => return unseen(target, proposed, markers, output),
    };
    let mut block = vec![output.last()];
    block.extend(proposed.iter().map(|proposal| proposal.token));
    // Rows of a pass: all, or one by one while they stand.
    let rows = match mode {
        Verify::Batched => block.len(),
        Verify::Sequential | Verify::ReferenceExact => 1,
    };
    let mut verified = Verified { accepted: 0, rejected: false, passes: 0 };
    let mut rest = &block[..];
    while !rest.is_empty() {
        let mut pass = &rest[..rows.min(rest.len())];
        let answer = loop {
            let want = chooser.want(0..pass.len());
            match target.forward(markers, Phase::Verify, Path::Decode, pass, &want) {
                // A drafted token for which the target has no numbers is its failure only if it says that token: ask about
                // those before it.
                Err(DeviceError::Shard(ShardError { why: Why::NoNumbers { row: row @ 1.. }, .. })) => {
                    pass = &pass[..row.min(pass.len() - 1)];
                }
                answered => break answered?,
            }
        };
        rest = &rest[pass.len()..];
        verified.passes += 1;
        range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(pass.len() as u64));
        for row in 0..pass.len() {
            let drafted = proposed.get(verified.accepted);
            let said = chooser.say(answer, row, &output.text, drafted)?;
            output.push(said);
            let stands = drafted.is_some_and(|proposal| proposal.token == said);
            verified.accepted += usize::from(stands);
            verified.rejected = drafted.is_some() && !stands;
            if !stands || output.finish.is_some() {
                return Ok(verified);
            }
        }
    }
    Ok(verified)
}

/// Verifies what only the device knows. It decides how much of that stands, as above.
fn unseen(
    target: &mut Chain,
    proposed: &Proposed,
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    let answer = target.verify(markers, output.last(), proposed)?;
    range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1 + proposed.count as u64));
    let mut verified = Verified { accepted: 0, rejected: false, passes: 1 };
    for (row, said) in answer.tokens.iter().enumerate() {
        output.push(*said);
        let stands = row + 1 < answer.tokens.len();
        verified.accepted += usize::from(stands);
        verified.rejected = !stands && row < proposed.count;
        if output.finish.is_some() {
            break;
        }
    }
    Ok(verified)
}
