//! Asking the target about drafted tokens, a block in one pass or one row a pass, and emitting what stands.
//!
//! Whatever the mode, what is emitted is what the target says after each row up to and including the
//! first disagreement, unless the text ends before that.

use marker_core::{Fields, Markers, Phase, Scope, range};

use super::accept::{Chooser, Proposal};
use super::{Output, Verify};
use crate::device::{DeviceError, Path};
use crate::shard::Chain;

/// What verifying a block gave.
pub(super) struct Verified {
    /// Drafted tokens that were emitted.
    pub(super) accepted: usize,
    /// Whether the drafted token behind those was judged and did not stand.
    pub(super) rejected: bool,
    /// Target passes that it took.
    pub(super) passes: usize,
}

/// Verifies `proposed`, the tokens drafted behind the last emitted one.
pub(super) fn verify(
    target: &mut Chain,
    mode: Verify,
    proposed: &[Proposal],
    chooser: &mut Chooser,
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    let mut block = vec![output.last()];
    block.extend(proposed.iter().map(|proposal| proposal.token));
    // Rows of a pass: all, or one by one while they stand.
    let rows = match mode {
        Verify::Batched => block.len(),
        Verify::Sequential | Verify::ReferenceExact => 1,
    };
    let mut verified = Verified { accepted: 0, rejected: false, passes: 0 };
    for pass in block.chunks(rows) {
        let want = chooser.want(0..pass.len());
        let answer = target.forward(markers, Phase::Verify, Path::Decode, pass, &want)?;
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
