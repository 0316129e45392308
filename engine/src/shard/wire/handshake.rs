//! What both sides must agree on before a token is computed.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::frame::Connection;
use super::message::{Code, Judged, Refusal};
use super::stream::{Fault, Wait};

/// The protocol that is spoken here. Another number means that nothing but the heads of frames is known.
const VERSION: u32 = 1;

/// How hidden state is written: as this machine holds an `f32`, so that nothing is converted. Two machines
/// of different byte orders see it here.
const DTYPE: u32 = if cfg!(target_endian = "little") { F32_LE } else { F32_BE };
const F32_LE: u32 = 1;
const F32_BE: u32 = 2;

/// What a parent and a shard must have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// [`Checkpoint::fingerprint`](crate::model::Checkpoint::fingerprint) of the model.
    pub fingerprint: u64,
    /// The shard's layers, end exclusive.
    pub layers: Range<usize>,
    /// Width of the hidden state.
    pub width: usize,
}

/// [`Terms`] on the wire. The version comes first and stays there in every version to come.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct Hello {
    version: U32,
    dtype: U32,
    fingerprint: U64,
    begin: U32,
    end: U32,
    width: U32,
}

/// A shard's answer to a hello that it agrees with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct Welcome {
    pub(in crate::shard) hello: Hello,
    /// Positions that its cache can hold.
    pub(in crate::shard) context: U32,
    /// The ordinal of its device on its host.
    pub(in crate::shard) device: U32,
}

impl Hello {
    pub(in crate::shard) fn new(terms: &Terms) -> Self {
        let number = |value: usize| U32::new(u32::try_from(value).unwrap_or(u32::MAX));
        Hello {
            version: VERSION.into(),
            dtype: DTYPE.into(),
            fingerprint: terms.fingerprint.into(),
            begin: number(terms.layers.start),
            end: number(terms.layers.end),
            width: number(terms.width),
        }
    }

    /// Compares what `whose` side said with this side's terms.
    pub(in crate::shard) fn agree(&self, terms: &Terms, whose: Side) -> Result<(), Refusal> {
        let ours = Hello::new(terms);
        let refuse = |code, text: fmt::Arguments<'_>| Err(Refusal::new(code, text.to_string()));
        let (theirs, mine) = whose.names();
        if self.dtype != ours.dtype {
            let name = |dtype: U32| match dtype.get() {
                F32_LE => "f32 little endian".to_owned(),
                F32_BE => "f32 big endian".to_owned(),
                other => format!("type {other}"),
            };
            return refuse(
                Code::Dtype,
                format_args!(
                    "{theirs} writes hidden state as {} and {mine} as {}",
                    name(self.dtype),
                    name(ours.dtype)
                ),
            );
        }
        if self.fingerprint != ours.fingerprint {
            return refuse(
                Code::Model,
                format_args!(
                    "{theirs} has another model ({:016x}) than {mine} ({:016x}): give both the same folder",
                    self.fingerprint, ours.fingerprint
                ),
            );
        }
        if (self.begin, self.end) != (ours.begin, ours.end) {
            return refuse(
                Code::Layers,
                format_args!(
                    "{theirs} says layers {}..{} and {mine} {}..{}: give both the same range",
                    self.begin, self.end, ours.begin, ours.end
                ),
            );
        }
        if self.width != ours.width {
            return refuse(
                Code::Width,
                format_args!(
                    "{theirs} says a hidden state of {} values and {mine} {}",
                    self.width, ours.width
                ),
            );
        }
        Ok(())
    }
}

/// Reads what `whose` side said of itself, a [`Hello`] or a [`Welcome`]. The version comes first in both: of another one
/// nothing else is known, not even the length.
pub(in crate::shard) fn read<T: FromBytes + IntoBytes>(
    connection: &mut Connection,
    whose: Side,
    wait: &mut impl Wait,
    over: Instant,
) -> Result<Judged<T>, Fault> {
    let (theirs, mine) = whose.names();
    let (left, expected) = (connection.left(), size_of::<T>() as u64);
    let mut said = T::new_zeroed();
    if let Some((first, rest)) = said.as_mut_bytes().split_first_chunk_mut()
        && left >= first.len() as u64
    {
        connection.take(first, wait, over)?;
        let version = u32::from_le_bytes(*first);
        if version != VERSION {
            let text = format!(
                "{theirs} speaks version {version} of the protocol and {mine} version {VERSION}: use one build of phasemark on both sides"
            );
            return Ok(Err(Refusal::new(Code::Version, text)));
        }
        if left == expected {
            connection.take(rest, wait, over)?;
            return Ok(Ok(said));
        }
    }
    let text = format!("{theirs}'s part of the handshake has {left} bytes, not {expected}");
    Ok(Err(Refusal::new(Code::Length, text)))
}

/// Which side said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Side {
    Parent,
    Shard,
}

impl Side {
    /// Its name, and the other one's.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Side::Parent => ("the parent", "the shard"),
            Side::Shard => ("the shard", "the parent"),
        }
    }
}
