//! What crosses between a parent and a remote shard, byte for byte.
//!
//! All numbers are little endian. A frame is a head and a body:
//!
//! ```text
//! head     magic "phmk" | kind u32 | id u64 | length of the body u64                         24 bytes
//!
//! parent -> shard
//!   1 hello    version u32 | dtype u32 | fingerprint u64 | layers begin, end u32 | width u32    28 bytes
//!   2 pass     keep u32 | restore u32 | flags u32 | rows u32 | width u32 | path u32 | phases u32
//!              | phases x i32 | rows x width x f32                  28 + 4 bytes, and the hidden state
//!   3 commit   keep u32 | restore u32 | flags u32                                               12 bytes
//! shard -> parent
//!   4 welcome  hello | context u32 | device u32                                                 36 bytes
//!   5 answer   rows u32 | width u32 | rows x width x f32             8 bytes, and the hidden state
//!   6 error    code u32 | UTF-8 text
//! ```
//!
//! # A pass
//!
//! One request, one answer, one at a time; an answer repeats its request's id, and ids grow. The parent's
//! wishes for the cache ride on the next request: first `restore` (`u32::MAX`: nothing; else the copy is
//! put back with that many of the rows behind it), then everything past `keep` positions is rolled back,
//! then, with flag 1, the cache is copied aside; then the rows are appended at position `keep`. So a round
//! of speculative decoding is one pass, and accepting or rejecting costs no trip of its own. A commit says
//! the same without rows; with flag 2 it also ends a generation, upon which a shard rewrites its
//! statistics before it answers. A pass with `keep` 0 starts a generation on an empty cache, whatever the
//! one before it left.
//!
//! `phases` counts the phase values that follow and is 1: a pass has exactly one phase. Hidden state is numbers: NaN and
//! infinity are refused by a shard and failed by a parent, as any other wrong meaning.
//!
//! An error with id 0 answers no request: a shard says why it closes or turns away, a child also why it leaves.
//!
//! # What is judged where
//!
//! [`frame`] judges framing: the magic, and a length under a cap that the handshake set (`context x width
//! x 4` and the fixed fields). Past it nothing is trusted: the connection answers if it can and closes.
//! [`message`] judges meaning of what was framed well: the body is drained, a typed error answers, the
//! connection stays. Nothing is allocated before both have judged the length.

pub(super) mod frame;
pub(super) mod handshake;
pub(super) mod message;
pub(super) mod stream;
