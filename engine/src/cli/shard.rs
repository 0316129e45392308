//! `phasemark shard`: some of a target's layers, for a `generate` in another process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::args::ShardArgs;
use super::error::CliError;
use super::generate::chosen_markers;
use super::output::Files;
use super::patient::reader_of;
use super::stats::ShardStats;
use super::teller::Teller;
use super::{choose, say};
use crate::device::{DeviceError, Part};
use crate::markers::Assembly;
use crate::model::{Checkpoint, ModelError};
use crate::shard::{Address, Limits, Listener, Service, Stop, Terms, is_orphaned, last_word, read_range};

/// What `--listen` says to a child, whose parent is at the other end of its standard input.
const INHERITED: &str = "inherited";

/// How long the reader of a pipe may read nothing: both files have their turn before a child is killed.
const PATIENCE: Duration = Duration::from_secs(8);

/// Serves until it is asked to leave, and then returns: profilers lose everything when a process is killed.
pub(super) fn run(args: &ShardArgs) -> Result<ExitCode, CliError> {
    if args.listen != INHERITED {
        return serve(args, None);
    }
    let no_socket = |error| CliError::BadAddress {
        given: args.listen.clone(),
        why: format!("the standard input is no socket of a parent ({error})"),
    };
    let parent = inherited().map_err(no_socket)?;
    match serve(args, Some(&parent)) {
        // Both have one standard error, and the parent knows which of its shards this is: it tells, and once.
        Err(error) if last_word(parent, &error.to_string().replace('\n', "; ")) => Ok(ExitCode::from(2)),
        done => done,
    }
}

/// Serves `parent`, or whoever connects.
fn serve(args: &ShardArgs, parent: Option<&UnixStream>) -> Result<ExitCode, CliError> {
    // From here on a signal is a wish.
    let stop = Arc::new(Stop::on_signals().map_err(CliError::Serving)?);
    let is_child = parent.is_some();
    let leaves = {
        let stop = Arc::clone(&stop);
        let parent = parent.map(UnixStream::try_clone).transpose().map_err(CliError::Serving)?;
        move || stop.is_asked() || parent.as_ref().is_some_and(is_orphaned)
    };
    let (record, stats) = (args.witness.record.as_deref(), args.witness.stats.as_deref());
    let pipes = record.into_iter().chain(stats);
    let Ok(readers) = pipes.map(|pipe| reader_of(pipe, &leaves)).collect::<Result<Vec<_>, _>>() else {
        return Ok(ExitCode::SUCCESS);
    };
    let files = Files::check(record, stats)?.giving_up_after(PATIENCE);
    drop(readers);
    let threads = choose::threads(args.threads)?;
    let device = choose::device(&args.device, threads)?;
    let markers = Assembly::new(
        &chosen_markers(args.witness.markers.as_deref())?,
        args.witness.detail.into(),
        args.witness.record.is_some(),
    )?;
    // A place that cannot be listened at is told before weights are read; who connects early waits.
    let place = if let Some(parent) = parent {
        Here::Inherited(parent.try_clone().map_err(CliError::Serving)?)
    } else {
        let bad = |error| CliError::BadAddress { given: args.listen.clone(), why: format!("{error}") };
        let address: Address = args.listen.parse().map_err(bad)?;
        Here::Listening(Listener::bind(&address, args.insecure)?)
    };

    let model = choose::target(args.model.as_deref())?;
    let mut checkpoint = Checkpoint::open(&model)?;
    let layers = read_range(&args.layers)?;
    let config = checkpoint.config();
    if layers.is_empty() || layers.end > config.layers {
        return Err(CliError::NoSuchLayers { begin: layers.start, end: layers.end, layers: config.layers });
    }
    let context = match args.context {
        Some(0) => return Err(CliError::Zero { what: "--context 0" }),
        Some(asked) if asked > config.context => {
            return Err(CliError::ContextTooLong { asked, most: config.context });
        }
        asked => asked.unwrap_or(config.context),
    };
    let terms = Terms { fingerprint: checkpoint.fingerprint(), layers: layers.clone(), width: config.hidden };
    checkpoint.give_up_when(leaves);
    let part = Part { layers: layers.clone(), embedding: false, head: false, context };
    let shard = match device.load(&checkpoint, part) {
        Err(DeviceError::Model(ModelError::GivenUp { .. })) => None,
        loaded => Some(loaded?),
    };

    let mut generations = 0;
    // A child's parent is told, and tells.
    let teller =
        (!is_child).then(|| Teller::new(std::io::stderr())).transpose().map_err(CliError::Serving)?;
    let tell = |line: &str| {
        if let Some(teller) = &teller {
            teller.tell(format!("phasemark shard {}..{}: {line}", layers.start, layers.end));
        }
    };
    let write_stats =
        |generations| files.write_stats(|| ShardStats::new(&layers, generations, &markers).json());
    let mut ended = || {
        generations += 1;
        if let Err(error) = write_stats(generations) {
            tell(&error.to_string());
        }
    };
    let served = shard.map_or(Ok(()), |shard| {
        let mut service = Service {
            shard,
            terms,
            markers: markers.markers(),
            limits: Limits::default(),
            ended: &mut ended,
            tell: &mut |line| tell(line),
        };
        match &place {
            Here::Listening(listener) => {
                say!("listening on {listener}");
                service.listen(listener, &stop)
            }
            Here::Inherited(stream) => stream.try_clone().and_then(|stream| service.inherited(stream, &stop)),
        }
    });

    // What failed first is told; what can be written is, all the same.
    let recorded = files.write_record(&markers);
    let counted = write_stats(generations);
    served.map_err(CliError::Serving)?;
    recorded.and(counted)?;
    Ok(ExitCode::SUCCESS)
}

/// Where parents come from.
enum Here {
    Listening(Listener),
    Inherited(UnixStream),
}

/// The socket that this process was started with as its standard input.
fn inherited() -> std::io::Result<UnixStream> {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    // Only a socket has a peer.
    stream.peer_addr()?;
    Ok(stream)
}
