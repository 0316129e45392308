//! What a well-framed request or answer means, and whether it makes sense.

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use marker_core::Phase;
use zerocopy::byteorder::little_endian::{I32, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::{Connection, Frame, SMALL_BODY, kind};
use super::stream::{Fault, Wait};
use crate::device::Path;

/// What is wrong with a request. The numbers are the wire's: never renumber them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(in crate::shard) enum Code {
    /// Another version of the protocol.
    Version = 1,
    /// Another model.
    Model = 2,
    /// Other layers.
    Layers = 3,
    /// Another width of the hidden state.
    Width = 4,
    /// Another way to write hidden state.
    Dtype = 5,
    /// Somebody else is being served.
    Busy = 6,
    /// A kind of frame that does not belong here.
    Kind = 7,
    /// A body that is shorter or longer than its fields say.
    Length = 8,
    /// No phase, several, or a number that is none.
    Phase = 9,
    /// No rows, or more than the cache has room for.
    Rows = 10,
    /// A path that there is not.
    Path = 11,
    /// Positions to keep that the cache does not have, or flags that there are not.
    Cache = 12,
    /// An id that was used before.
    Stale = 13,
    /// The device failed.
    Device = 14,
    /// No frame at all.
    Framing = 15,
    /// Hidden state that is no numbers.
    Numbers = 16,
}

/// Why a request is refused, as a code and as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Refusal {
    pub(in crate::shard) code: u32,
    pub(in crate::shard) text: String,
}

/// Bytes of a refusal's sentence at most.
const TEXT_MAX: usize = 1024;

impl Refusal {
    pub(in crate::shard) fn new(code: Code, text: impl Into<String>) -> Self {
        Refusal { code: code as u32, text: text.into() }
    }

    /// Answers request `id` with it.
    pub(in crate::shard) fn send(
        &self,
        id: u64,
        connection: &mut Connection,
        wait: &mut impl Wait,
        over: Instant,
    ) -> Result<(), Fault> {
        let text = &self.text[..self.text.floor_char_boundary(TEXT_MAX)];
        let frame = Frame { kind: kind::ERROR, id };
        connection.send(frame, U32::new(self.code).as_bytes(), text.as_bytes(), wait, over)
    }

    /// Reads the body of an error frame, whatever it holds.
    pub(in crate::shard) fn take(
        connection: &mut Connection,
        wait: &mut impl Wait,
        over: Instant,
    ) -> Result<Self, Fault> {
        let mut body = [0; size_of::<U32>() + TEXT_MAX];
        let there = usize::try_from(connection.left()).unwrap_or(usize::MAX).min(body.len());
        connection.take(&mut body[..there], wait, over)?;
        connection.drain(wait, over)?;
        let Some((code, text)) = body[..there].split_first_chunk() else {
            return Ok(Refusal { code: 0, text: "an error without a word".into() });
        };
        // A sentence from elsewhere goes to a person's terminal: no control characters.
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        Ok(Refusal { code: u32::from_le_bytes(*code), text })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a request asks of the cache.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct Keep {
    /// Positions to keep, after restoring.
    pub(in crate::shard) len: U32,
    /// Rows behind the copy to keep when it is put back; [`NO_RESTORE`]: it is not.
    pub(in crate::shard) restore: U32,
    /// [`SNAPSHOT`] and [`END`].
    pub(in crate::shard) flags: U32,
}

pub(in crate::shard) const NO_RESTORE: u32 = u32::MAX;
/// Copy the cache aside, after restoring and rolling back.
pub(in crate::shard) const SNAPSHOT: u32 = 1;
/// A generation is over. Only in a commit.
pub(in crate::shard) const END: u32 = 2;

/// The fixed fields of a pass.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct PassFields {
    pub(in crate::shard) keep: Keep,
    pub(in crate::shard) rows: U32,
    pub(in crate::shard) width: U32,
    pub(in crate::shard) path: U32,
    /// Phase values that follow: one.
    pub(in crate::shard) phases: U32,
}

/// A pass as a parent sends it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct PassFrame {
    pub(in crate::shard) fields: PassFields,
    pub(in crate::shard) phase: I32,
}

/// The fixed fields of an answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct AnswerFields {
    pub(in crate::shard) rows: U32,
    pub(in crate::shard) width: U32,
}

/// A pass that makes sense; its hidden state is what is left of the frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Asked {
    pub(in crate::shard) keep: Keep,
    pub(in crate::shard) rows: usize,
    pub(in crate::shard) path: Path,
    pub(in crate::shard) phase: Phase,
}

/// A request, or what is wrong with it.
pub(in crate::shard) type Judged<T> = Result<T, Refusal>;

pub(in crate::shard) fn path_number(path: Path) -> u32 {
    match path {
        Path::Decode => 0,
        Path::Dense => 1,
    }
}

/// Reads the fixed fields of type `T`, if the body is long enough for them.
pub(in crate::shard) fn fields<T: FromBytes + IntoBytes>(
    connection: &mut Connection,
    wait: &mut impl Wait,
    over: Instant,
) -> Result<Judged<T>, Fault> {
    let mut fields = T::new_zeroed();
    if connection.left() < size_of::<T>() as u64 {
        return Ok(Err(length(connection.left(), size_of::<T>() as u64)));
    }
    connection.take(fields.as_mut_bytes(), wait, over)?;
    Ok(Ok(fields))
}

/// A body of another length than its fields say.
fn length(has: u64, expected: u64) -> Refusal {
    let more = if has < expected { "fewer" } else { "more" };
    Refusal::new(
        Code::Length,
        format!("the body has {more} bytes than its fields say: {has}, not {expected}"),
    )
}

/// Reads a pass up to its hidden state and judges all of it but the cache's state. Takes no more of the
/// frame than it must to find a fault.
pub(in crate::shard) fn judge_pass(
    width: usize,
    context: usize,
    connection: &mut Connection,
    wait: &mut impl Wait,
    over: Instant,
) -> Result<Judged<Asked>, Fault> {
    let fields: PassFields = match fields(connection, wait, over)? {
        Ok(fields) => fields,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let refuse = |code, text: Cow<'static, str>| Ok(Err(Refusal::new(code, text)));
    match fields.phases.get() {
        1 => {}
        0 => return refuse(Code::Phase, "the pass has no phase".into()),
        several => return refuse(Code::Phase, format!("the pass has {several} phases, not one").into()),
    }
    let mut phase = [0; 4];
    if connection.left() < 4 {
        return refuse(Code::Phase, "the pass ends before its phase".into());
    }
    connection.take(&mut phase, wait, over)?;
    let phase = match Phase::from_le_bytes(phase) {
        Ok(phase) => phase,
        Err(wrong) => return refuse(Code::Phase, wrong.to_string().into()),
    };
    let path = match fields.path.get() {
        0 => Path::Decode,
        1 => Path::Dense,
        other => return refuse(Code::Path, format!("there is no path {other}").into()),
    };
    if fields.width.get() as usize != width {
        let text = format!("the hidden state is {} values wide, not {width}", fields.width);
        return refuse(Code::Width, text.into());
    }
    let rows = fields.rows.get() as usize;
    if rows == 0 {
        return refuse(Code::Rows, "the pass has no rows".into());
    }
    if let Err(refusal) = judge_keep(&fields.keep, SNAPSHOT) {
        return Ok(Err(refusal));
    }
    let keep = fields.keep.len.get() as usize;
    if keep > context || rows > context - keep {
        let text = format!("{rows} rows behind {keep} positions do not fit a cache of {context}");
        return refuse(Code::Rows, text.into());
    }
    let expected = rows as u64 * width as u64 * 4;
    if connection.left() != expected {
        let fixed = size_of::<PassFrame>() as u64;
        return Ok(Err(length(fixed + connection.left(), fixed + expected)));
    }
    Ok(Ok(Asked { keep: fields.keep, rows, path, phase }))
}

/// Reads and judges a commit.
pub(in crate::shard) fn judge_commit(
    connection: &mut Connection,
    wait: &mut impl Wait,
    over: Instant,
) -> Result<Judged<Keep>, Fault> {
    let keep: Keep = match fields(connection, wait, over)? {
        Ok(keep) => keep,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if connection.left() > 0 {
        let fixed = size_of::<Keep>() as u64;
        return Ok(Err(length(fixed + connection.left(), fixed)));
    }
    Ok(judge_keep(&keep, SNAPSHOT | END).map(|()| keep))
}

fn judge_keep(keep: &Keep, known: u32) -> Judged<()> {
    match keep.flags.get() & !known {
        0 => Ok(()),
        unknown => Err(Refusal::new(Code::Cache, format!("there are no flags {unknown:#x}"))),
    }
}

const _: () = assert!(TEXT_MAX + size_of::<U32>() <= SMALL_BODY as usize, "every error fits under every cap");
