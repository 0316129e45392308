//! `phasemark shard`: some of a target's layers, for a `generate` in another process.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use super::args::ShardArgs;
use super::error::CliError;
use super::generate::chosen_markers;
use super::output::Files;
use super::stats::ShardStats;
use super::teller::Teller;
use super::{choose, say};
use crate::device::Part;
use crate::markers::Assembly;
use crate::model::Checkpoint;
use crate::shard::{Address, Limits, Listener, Service, Stop, Terms, read_range};

/// Serves until it is asked to leave, and then returns: profilers lose everything when a process is killed.
pub(super) fn run(args: &ShardArgs) -> Result<ExitCode, CliError> {
    // From here on a signal is a wish; while weights are read it waits for them.
    let stop = Stop::on_signals().map_err(CliError::Serving)?;
    let threads = choose::threads(args.threads)?;
    let device = choose::device(&args.device, threads)?;
    let markers = Assembly::new(
        &chosen_markers(args.witness.markers.as_deref())?,
        args.witness.detail.into(),
        args.witness.record.is_some(),
    )?;
    let files = Files::check(args.witness.record.as_deref(), args.witness.stats.as_deref())?;
    let bad = |why: String| CliError::BadAddress { given: args.listen.clone(), why };
    // A place that cannot be listened at is told before weights are read; who connects early waits.
    let place = match args.listen.as_str() {
        "inherited" => {
            let no_socket = |error| bad(format!("the standard input is no socket of a parent ({error})"));
            Here::Inherited(inherited().map_err(no_socket)?)
        }
        address => {
            let address: Address = address.parse().map_err(|error| bad(format!("{error}")))?;
            Here::Listening(Listener::bind(&address, args.insecure)?)
        }
    };

    let model = choose::target(args.model.as_deref())?;
    let checkpoint = Checkpoint::open(&model)?;
    let config = checkpoint.config();
    let layers = read_range(&args.layers)?;
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
    let part = Part { layers: layers.clone(), embedding: false, head: false, context };
    let shard = device.load(&checkpoint, part)?;
    let terms = Terms { fingerprint: checkpoint.fingerprint(), layers: layers.clone(), width: config.hidden };

    let mut generations = 0;
    let teller = Teller::new(std::io::stderr()).map_err(CliError::Serving)?;
    let mut tell =
        |line: &str| teller.tell(format!("phasemark shard {}..{}: {line}", layers.start, layers.end));
    let write_stats =
        |generations| files.write_stats(|| ShardStats::new(&layers, generations, &markers).json());
    let mut ended = || {
        generations += 1;
        if let Err(error) = write_stats(generations) {
            teller.tell(format!("phasemark shard {}..{}: {error}", layers.start, layers.end));
        }
    };
    let mut service = Service {
        shard,
        terms,
        markers: markers.markers(),
        limits: Limits::default(),
        ended: &mut ended,
        tell: &mut tell,
    };
    let served = match &place {
        Here::Listening(listener) => {
            say!("listening on {listener}");
            service.listen(listener, &stop)
        }
        Here::Inherited(stream) => stream.try_clone().and_then(|stream| service.inherited(stream, &stop)),
    };
    drop(service);

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
