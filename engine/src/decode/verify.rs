//! Asking the target about drafted tokens, a block in one pass or one row a pass, and emitting what stands.
//!
//! Whatever the mode, what is emitted is what the target says after each row up to and including the
//! first disagreement, unless the text ends before that.

use marker_core::{Fields, Markers, Phase, Scope, range};

use super::{Output, Verify, accept, only};
use crate::device::{DeviceError, Path, Want};
use crate::shard::Chain;

/// What verifying a block gave.
pub(super) struct Verified {
    /// Drafted tokens that were emitted.
    pub(super) accepted: usize,
    /// Target passes that it took.
    pub(super) passes: usize,
}

/// Verifies `block`: the last emitted token and the drafted ones behind it.
pub(super) fn verify(
    target: &mut Chain,
    mode: Verify,
    block: &[u32],
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    match mode {
        Verify::Batched => in_one_pass(target, block, markers, output),
        Verify::Sequential | Verify::ReferenceExact => one_by_one(target, block, markers, output),
    }
}

fn in_one_pass(
    target: &mut Chain,
    block: &[u32],
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    let want = Want::Tokens(0..block.len());
    let said = &target.forward(markers, Phase::Verify, Path::Decode, block, &want)?.tokens;
    if said.len() != block.len() {
        return Err(DeviceError::BadPass(format!("{} rows gave {} tokens", block.len(), said.len())));
    }
    range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(block.len() as u64));
    let agreed = accept::agreeing(&block[1..], said);
    let emitted = said[..=agreed].iter().take_while(|token| output.push(**token)).count();
    Ok(Verified { accepted: agreed.min(emitted), passes: 1 })
}

fn one_by_one(
    target: &mut Chain,
    block: &[u32],
    markers: Markers<'_>,
    output: &mut Output<'_>,
) -> Result<Verified, DeviceError> {
    let mut passes = 0;
    loop {
        let rows = &block[passes..=passes];
        let said =
            only(&target.forward(markers, Phase::Verify, Path::Decode, rows, &Want::Tokens(0..1))?.tokens)?;
        passes += 1;
        range!(markers.at_full_detail(), Fields::new(Scope::SAMPLE).tokens(1));
        output.push(said);
        let agrees = block.get(passes) == Some(&said);
        if !agrees || output.finish.is_some() {
            return Ok(Verified { accepted: passes - usize::from(!agrees), passes });
        }
    }
}
