//! What can go wrong between a parent and a shard.

use std::io;
use std::time::Duration;

use super::advice;

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
    /// There is no way to where it should listen.
    #[error("no connection ({}): {}", .0, advice::to_connect(.0))]
    NotThere(io::Error),
    /// Its host has no address.
    #[error("its host cannot be looked up ({0}): check the name")]
    NoSuchHost(io::Error),
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
    #[error("cannot listen ({}): {}", .0, advice::to_listen(.0))]
    CannotListen(io::Error),
    /// A child could not be started.
    #[error("cannot start a child ({}): {}", .0, advice::to_start(.0))]
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
    /// It is not the shard that this parent needs, says that this is not its parent, or why it leaves.
    #[error("{0}")]
    Mismatch(String),
    /// A request was refused.
    #[error("it refused the request: {0}")]
    Refused(String),
    /// Nothing came in time.
    #[error("no answer within {} s: it is stopped, overloaded or unreachable", .0.as_secs_f64())]
    TimedOut(Duration),
    /// Nobody greets in time: a shard that listens does so before it reads its weights.
    #[error(
        "no answer within {} s: it still reads its weights (when it is ready it says so), or it is stopped, overloaded or unreachable",
        .0.as_secs_f64()
    )]
    NotReady(Duration),
    /// Who listens takes no handshake.
    #[error("no handshake ({0}): see that it is `phasemark shard` which listens there, and what that says")]
    NoHandshake(String),
    /// It closed the connection or died.
    #[error("the connection broke: {0}")]
    Gone(String),
    /// A child that was needed no more ended badly.
    #[error("its process ended with {0}: what it was to write may be missing")]
    Ended(String),
    /// What it sent makes no sense.
    #[error("its answer makes no sense: {0}")]
    BadAnswer(String),
    /// Its hidden state is no numbers.
    #[error(
        "row {row} of the hidden state that it gave is NaN or infinite, and what it was given was not: its weights are damaged \
         or its device fails; `phasemark verify-model` on its host tells"
    )]
    NoNumbers {
        /// Which row of the pass, counted from 0.
        row: usize,
    },
    /// The connection was lost earlier in this generation, and with it the cache.
    #[error("its cache was lost with the connection: start the generation again")]
    CacheLost,
    /// This process was asked to leave.
    #[error("this process was asked to leave")]
    Stopped,
}
