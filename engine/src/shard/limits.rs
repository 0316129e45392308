//! How long is waited for whom: every wait between a parent and a shard is bounded by one of these.

use std::time::Duration;

/// How long is waited for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For a connection, and for a listening shard's part of the handshake.
    pub connect: Duration,
    /// For a spawned shard's part of the handshake, which comes when it has read its weights.
    pub load: Duration,
    /// For sending a request and having the whole of its answer.
    pub answer: Duration,
    /// For a request that has begun to come, and for the peer to take an answer.
    pub frame: Duration,
    /// For a connected parent to ask for something, before others get their turn.
    pub idle: Duration,
    /// For a child to leave by itself before it is killed.
    pub leave: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect: Duration::from_secs(10),
            load: Duration::from_mins(10),
            answer: Duration::from_mins(2),
            frame: Duration::from_secs(30),
            idle: Duration::from_mins(10),
            leave: Duration::from_secs(20),
        }
    }
}
