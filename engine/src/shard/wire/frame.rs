//! Frames: where one ends and the next begins, and whether that can be believed.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::stream::{Fault, Stream, Wait};

/// The first four bytes of every frame.
pub(in crate::shard) const MAGIC: [u8; 4] = *b"phmk";

/// Bytes of a body at most until the handshake has said more, and of an error always.
pub(in crate::shard) const SMALL_BODY: u64 = 4096;

/// What kinds of frames there are.
pub(in crate::shard) mod kind {
    pub(in crate::shard) const HELLO: u32 = 1;
    pub(in crate::shard) const PASS: u32 = 2;
    pub(in crate::shard) const COMMIT: u32 = 3;
    pub(in crate::shard) const WELCOME: u32 = 4;
    pub(in crate::shard) const ANSWER: u32 = 5;
    pub(in crate::shard) const ERROR: u32 = 6;
}

/// What stands before every body.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(in crate::shard) struct Head {
    pub(in crate::shard) magic: [u8; 4],
    pub(in crate::shard) kind: U32,
    pub(in crate::shard) id: U64,
    pub(in crate::shard) length: U64,
}

const HEAD: usize = size_of::<Head>();

/// A frame's kind and id; its body is still to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) struct Frame {
    pub(in crate::shard) kind: u32,
    pub(in crate::shard) id: u64,
}

/// Small frames are received in one call and copied out of here; larger bodies go straight to their place.
const BUFFER: usize = 8192;

/// A socket seen as frames.
///
/// It remembers how far it is inside a frame, so that whoever gives up on a frame can go on behind it.
pub(in crate::shard) struct Connection {
    stream: Stream,
    /// Bytes that a body may have.
    cap: u64,
    buffer: Box<[u8; BUFFER]>,
    /// The part of the buffer that was received and not yet taken.
    have: std::ops::Range<usize>,
    /// Bytes of the current frame's body that were not yet taken.
    left: u64,
}

impl Connection {
    pub(in crate::shard) fn new(stream: Stream) -> Self {
        Connection { stream, cap: SMALL_BODY, buffer: Box::new([0; BUFFER]), have: 0..0, left: 0 }
    }

    /// Sets the cap that the handshake agreed on: hidden state of `rows` rows, and the fixed fields.
    pub(in crate::shard) fn cap_at(&mut self, rows: usize, width: usize) {
        let hidden = (rows as u64).saturating_mul(width as u64).saturating_mul(4);
        self.cap = hidden.saturating_add(SMALL_BODY);
    }

    /// Bytes of the current frame's body that were not yet taken.
    pub(in crate::shard) fn left(&self) -> u64 {
        self.left
    }

    /// Whether a frame has begun that has not been taken to its end.
    pub(in crate::shard) fn is_inside(&self) -> bool {
        self.left > 0 || !self.have.is_empty()
    }

    /// Whether the other side has closed already and nothing of it is left to read.
    pub(in crate::shard) fn is_over(&self) -> bool {
        self.have.is_empty() && self.stream.is_over()
    }

    /// Skips what is left of a frame and reads the next one's head. The frame may take until `until` to begin; `limit`
    /// is asked when it does, and says by when it must be over: the second result.
    pub(in crate::shard) fn next(
        &mut self,
        wait: &mut impl Wait,
        until: Option<Instant>,
        limit: impl Fn() -> Instant,
    ) -> Result<(Frame, Instant), Fault> {
        let mut over = self.is_inside().then(&limit);
        if let Some(over) = over {
            self.drain(wait, over)?;
        }
        while self.have.len() < HEAD {
            if self.have.start > BUFFER - HEAD {
                self.buffer.copy_within(self.have.clone(), 0);
                self.have = 0..self.have.len();
            }
            // Nobody sends before the other side has spoken: wait first, then look.
            wait.wait(self.stream.as_fd(), PollFlags::IN, over.or(until))?;
            match self.stream.receive(&mut self.buffer[self.have.end..]) {
                Ok(0) => return Err(Fault::Closed),
                Ok(received) => self.have.end += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            over.get_or_insert_with(&limit);
        }
        let over = over.unwrap_or_else(limit);
        let mut head = Head::new_zeroed();
        self.take_buffered(head.as_mut_bytes());
        if head.magic != MAGIC {
            return Err(Fault::Unframed(format!(
                "it begins with \"{}\"",
                head.magic.escape_ascii()
            )));
        }
        if head.length.get() > self.cap {
            return Err(Fault::Unframed(format!(
                "its body would have {} bytes, and at most {} were agreed on",
                head.length, self.cap
            )));
        }
        self.left = head.length.get();
        Ok((Frame { kind: head.kind.get(), id: head.id.get() }, over))
    }

    /// Fills `into` from the current frame's body, which has that many bytes [left](Self::left).
    pub(in crate::shard) fn take(
        &mut self,
        into: &mut [u8],
        wait: &mut impl Wait,
        over: Instant,
    ) -> Result<(), Fault> {
        debug_assert!(into.len() as u64 <= self.left, "a body is taken only as far as it goes");
        let buffered = self.have.len().min(into.len());
        self.take_buffered(&mut into[..buffered]);
        self.left -= buffered as u64;
        let mut filled = buffered;
        while filled < into.len() {
            filled += self.receive_body(&mut into[filled..], wait, over)?;
        }
        Ok(())
    }

    /// Skips what is left of the current frame's body.
    pub(in crate::shard) fn drain(&mut self, wait: &mut impl Wait, over: Instant) -> Result<(), Fault> {
        let buffered = self.have.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.have.start += buffered;
        self.left -= buffered as u64;
        let mut scrap = [0; BUFFER];
        while self.left > 0 {
            let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(BUFFER);
            self.receive_body(&mut scrap[..want], wait, over)?;
        }
        Ok(())
    }

    /// Sends a frame whose body is `fields` and then `payload`.
    pub(in crate::shard) fn send(
        &mut self,
        frame: Frame,
        fields: &[u8],
        payload: &[u8],
        wait: &mut impl Wait,
        over: Instant,
    ) -> Result<(), Fault> {
        let head = Head {
            magic: MAGIC,
            kind: frame.kind.into(),
            id: frame.id.into(),
            length: ((fields.len() + payload.len()) as u64).into(),
        };
        let mut parts = [IoSlice::new(head.as_bytes()), IoSlice::new(fields), IoSlice::new(payload)];
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match self.stream.send(parts) {
                Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait.wait(self.stream.as_fd(), PollFlags::OUT, Some(over))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Says that nothing more will be sent; what comes can still be read.
    pub(in crate::shard) fn end_sending(&self) {
        self.stream.end_sending();
    }

    /// Closes, but lets what was sent arrive: a socket closed with bytes unread may lose it.
    pub(in crate::shard) fn part(mut self, wait: &mut impl Wait, linger: Duration) {
        self.stream.end_sending();
        let over = Instant::now() + linger;
        self.left = u64::MAX;
        // Whatever ends this, the connection is over.
        let _ = self.drain(wait, over);
    }

    fn take_buffered(&mut self, into: &mut [u8]) {
        let end = self.have.start + into.len();
        into.copy_from_slice(&self.buffer[self.have.start..end]);
        self.have = if end == self.have.end { 0..0 } else { end..self.have.end };
    }

    /// Receives some of a body. The buffer is empty.
    fn receive_body(&mut self, into: &mut [u8], wait: &mut impl Wait, over: Instant) -> Result<usize, Fault> {
        loop {
            match self.stream.receive(into) {
                Ok(0) => return Err(Fault::Closed),
                Ok(received) => {
                    self.left -= received as u64;
                    // A peer that drips is as late as one that is silent.
                    if self.left > 0 && Instant::now() >= over {
                        return Err(Fault::TimedOut);
                    }
                    return Ok(received);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait.wait(self.stream.as_fd(), PollFlags::IN, Some(over))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
