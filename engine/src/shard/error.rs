//! What can go wrong between a parent and a shard.

use std::io;
use std::time::Duration;

/// An error of one shard, which it names.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard}: {why}")]
pub struct ShardError {
    /// Its layers and its place: `4..8 at unix:/run/a`.
    pub shard: String,
    /// What went wrong and what to do.
    pub why: Why,
}

/// What went wrong with a shard.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// Nobody listens.
    #[error(
        "no connection ({0}): start it first with `phasemark shard`, and give both sides the same address"
    )]
    NotThere(io::Error),
    /// An address outside this host, without leave.
    #[error(
        "{0} is not this host, and what crosses is neither encrypted nor authenticated: use an SSH tunnel, or allow it with --insecure"
    )]
    NotLoopback(String),
    /// Another shard has this place.
    #[error("another shard listens there already: stop it, or choose another address")]
    Taken,
    /// Something else has this place.
    #[error("{0} is there and no socket: it is left alone, choose another path")]
    NotASocket(String),
    /// The place cannot be listened at.
    #[error("cannot listen: {0}")]
    CannotListen(io::Error),
    /// A child could not be started.
    #[error("cannot start a child: {0}")]
    CannotStart(io::Error),
    /// Its cache is smaller than a request needs.
    #[error(
        "its cache holds {has} positions, and {needed} are needed: start it with --context {needed} or more"
    )]
    TooSmall {
        /// Positions that it holds.
        has: usize,
        /// Positions that the request needs.
        needed: usize,
    },
    /// It is not the shard that this parent needs, or says that this is not its parent.
    #[error("{0}")]
    Mismatch(String),
    /// A request was refused.
    #[error("it refused the request: {0}")]
    Refused(String),
    /// Nothing came in time.
    #[error("no answer within {} s: it is stopped, overloaded or unreachable", .0.as_secs_f64())]
    TimedOut(Duration),
    /// It closed the connection or died.
    #[error("the connection broke: {0}")]
    Gone(String),
    /// A child that was needed no more ended badly.
    #[error("its process ended with {0}: what it was to write may be missing")]
    Ended(String),
    /// What it sent makes no sense.
    #[error("its answer makes no sense: {0}")]
    BadAnswer(String),
    /// The connection was lost earlier in this generation, and with it the cache.
    #[error("its cache was lost with the connection: start the generation again")]
    CacheLost,
    /// This process was asked to leave.
    #[error("this process was asked to leave")]
    Stopped,
}
