//! The id of the largest logit.

use super::{Done, Grid, Space, check_launch, demand};
use crate::arguments::{Accept, Argmax};

/// The larger, or the lower id of two that are the same. Not a number never wins.
#[allow(clippy::float_cmp, reason = "a tie is when they are the same")]
fn prefer(best: (f32, u32), other: (f32, u32)) -> (f32, u32) {
    if other.0 > best.0 || (other.0 == best.0 && other.1 < best.1) { other } else { best }
}

const NONE: (f32, u32) = (f32::NEG_INFINITY, u32::MAX);

/// Each part's best; the best, where there is one part.
pub(super) fn argmax(a: Argmax, grid: Grid, space: &Space<'_>) -> Done {
    let (rows, parts) = (grid.blocks[0] as usize, a.parts as usize);
    check_launch(grid, [rows as u32, a.parts, 1], 1024, 0)?;
    demand(a.vocab <= a.stride && parts <= 32, "`vocab`, `parts`")?;
    let (vocab, stride) = (a.vocab as usize, a.stride as usize);
    let logits = space.cells::<f32>(a.logits, rows * stride)?;
    for (row, logits) in logits.chunks(stride).enumerate() {
        for part in 0..parts {
            let ids = vocab * part / parts..vocab * (part + 1) / parts;
            let best = ids.fold(NONE, |best, id| prefer(best, (logits[id].get(), id as u32)));
            if parts == 1 {
                space.cells::<u32>(a.tokens, rows)?[row].set(if best.1 == u32::MAX { 0 } else { best.1 });
            } else {
                space.cells::<f32>(a.tops, rows * parts)?[row * parts + part].set(best.0);
                space.cells::<u32>(a.ids, rows * parts)?[row * parts + part].set(best.1);
            }
        }
    }
    Ok(())
}

/// The best of the parts.
pub(super) fn choose(a: Argmax, grid: Grid, space: &Space<'_>) -> Done {
    let (rows, parts) = (grid.blocks[0] as usize, a.parts as usize);
    check_launch(grid, [rows as u32, 1, 1], 32, 0)?;
    let (tops, ids) = (space.cells::<f32>(a.tops, rows * parts)?, space.cells::<u32>(a.ids, rows * parts)?);
    let tokens = space.cells::<u32>(a.tokens, rows)?;
    for (row, token) in tokens.iter().enumerate() {
        let of_part = |part: usize| (tops[row * parts + part].get(), ids[row * parts + part].get());
        let best = (0..parts).map(of_part).fold(NONE, prefer);
        token.set(if best.1 == u32::MAX { 0 } else { best.1 });
    }
    Ok(())
}

/// How many of the proposed ids the model says itself, up to the first that it does not.
pub(super) fn accept(a: Accept, grid: Grid, space: &Space<'_>) -> Done {
    check_launch(grid, [1, 1, 1], 32, 0)?;
    demand(a.count < 32, "`count`")?;
    let (said, proposed) =
        (space.cells::<u32>(a.said, a.count as usize)?, space.cells::<u32>(a.proposed, a.count as usize)?);
    let stand = said.iter().zip(proposed).take_while(|(said, proposed)| said.get() == proposed.get());
    space.cells::<u32>(a.accepted, 1)?[0].set(stand.count() as u32);
    Ok(())
}
