//! The target over the shards that `--shards` and `--split` ask for.

use std::path::Path;

use super::args::GenerateArgs;
use super::choose;
use super::error::CliError;
use super::output::Files;
use crate::device::{Device, Part, Shard};
use crate::load::Pair;
use crate::shard::{Chain, Place, Placed, split};

/// A target that is to be spread over shards.
pub(super) struct Spread<'a> {
    pub(super) pair: &'a Pair,
    /// The target's folder: a child of this process reads the same one.
    pub(super) folder: &'a Path,
    pub(super) args: &'a GenerateArgs,
    /// This process's own: a child's lie beside them.
    pub(super) files: &'a Files,
    pub(super) threads: usize,
    /// What a child is told of markers, should it not find that out by itself.
    pub(super) markers: Option<&'a str>,
    /// Positions that every cache must hold.
    pub(super) context: usize,
}

impl Spread<'_> {
    /// Loads what is here and connects to what is elsewhere. `device` is the one that `--device` names: it has
    /// the embedding and the head when a shard at either end is elsewhere.
    pub(super) fn target(&self, device: &dyn Device) -> Result<Chain, CliError> {
        let checkpoint = &self.pair.target;
        let (config, context) = (checkpoint.config(), self.context);
        let here = Place::Device(self.args.models.device.clone());
        let spread = &self.args.spread;
        let placed = split(spread.shards.as_deref(), spread.split.as_deref(), &here, config.layers)?;

        // Children read their weights while this process reads its own.
        let mut ways = Vec::with_capacity(placed.len());
        for (index, Placed { layers, place }) in placed.iter().enumerate() {
            ways.push(self.way(index, layers, place)?);
        }
        let elsewhere = |way: Option<&Option<elsewhere::Way>>| way.is_some_and(Option::is_some);
        let ends = elsewhere(ways.first()) || elsewhere(ways.last());
        let last = placed.len() - 1;
        let mut shards = Vec::with_capacity(placed.len());
        for (index, (Placed { layers, place }, way)) in placed.into_iter().zip(&ways).enumerate() {
            let (Place::Device(name), None) = (&place, way) else {
                shards.push(None);
                continue;
            };
            let (embedding, head) = (index == 0 && !ends, index == last && !ends);
            let part = Part { layers, embedding, head, context };
            let shard = if *name == self.args.models.device {
                device.load(checkpoint, part)?
            } else {
                choose::device(name, self.threads)?.load(checkpoint, part)?
            };
            shards.push(Some(shard));
        }
        let ends = ends
            .then(|| device.load(checkpoint, Part { layers: 0..0, embedding: true, head: true, context }))
            .transpose()?;
        let mut chain: Vec<Box<dyn Shard>> = Vec::with_capacity(shards.len());
        for (shard, way) in shards.into_iter().zip(ways) {
            match (shard, way) {
                (Some(shard), _) => chain.push(shard),
                (None, Some(way)) => chain.push(way.connect(checkpoint, context)?),
                (None, None) => {}
            }
        }
        Ok(match ends {
            Some(ends) => Chain::with_ends(config, ends, chain)?,
            None => Chain::new(config, chain)?,
        })
    }
}

cfg_select! {
    unix => {
        mod elsewhere {
            use std::ops::Range;

            use super::CliError;
            use crate::device::Shard;
            use crate::model::Checkpoint;
            use crate::shard::{Limits, Link, RemoteShard, Terms};

            /// The way to a shard that is not in this process.
            pub(super) struct Way {
                pub(super) link: Link,
                pub(super) layers: Range<usize>,
                pub(super) limits: Limits,
            }

            impl Way {
                pub(super) fn connect(self, checkpoint: &Checkpoint, context: usize) -> Result<Box<dyn Shard>, CliError> {
                    let terms = Terms {
                        fingerprint: checkpoint.fingerprint(),
                        layers: self.layers,
                        width: checkpoint.config().hidden,
                    };
                    let shard = RemoteShard::connect(self.link, terms, self.limits)?;
                    shard.can_hold(context)?;
                    Ok(Box::new(shard))
                }
            }
        }

        use std::ffi::OsString;
        use std::ops::Range;

        use crate::shard::{Limits, Link, ShardError, Spawned};
        use super::args::DetailArg;
        use super::output::ChildFiles;

        impl Spread<'_> {
            /// The way to shard `index` if it is not in this process. A child is started.
            fn way(
                &self,
                index: usize,
                layers: &Range<usize>,
                place: &Place,
            ) -> Result<Option<elsewhere::Way>, CliError> {
                let limits = Limits::default();
                let link = match place {
                    Place::Device(_) => return Ok(None),
                    Place::At(address) => {
                        Link::Listening { address: address.clone(), insecure: self.args.spread.insecure }
                    }
                    Place::Spawn(device) => {
                        // Told here and once, not by a child and its parent.
                        crate::device::read(device)?;
                        let named = |why| ShardError { shard: format!("{}..{} at {place}", layers.start, layers.end), why };
                        // What this process is called may have been replaced by a newer build.
                        let program = std::env::current_exe()
                            .map_err(|error| named(crate::shard::Why::CannotStart(error)))?;
                        let args = self.child(layers, device, self.files.of_shard(index)?);
                        Link::Spawned(Spawned::start(place.to_string(), program, args, &limits).map_err(named)?)
                    }
                };
                Ok(Some(elsewhere::Way { link, layers: layers.clone(), limits }))
            }

            /// The command line of a child: this one's markers, detail and threads, and files of its own.
            fn child(&self, layers: &Range<usize>, device: &str, files: ChildFiles) -> Vec<OsString> {
                let detail = match self.args.witness.detail {
                    DetailArg::Phases => "phases",
                    DetailArg::Full => "full",
                };
                let mut args: Vec<OsString> = vec!["shard".into(), "--model".into(), self.folder.into()];
                let mut option = |name: &str, value: OsString| args.extend([name.into(), value]);
                option("--listen", "inherited".into());
                option("--layers", format!("{}..{}", layers.start, layers.end).into());
                option("--device", device.into());
                option("--threads", self.threads.to_string().into());
                option("--context", self.context.to_string().into());
                option("--detail", detail.into());
                if let Some(markers) = self.markers {
                    option("--markers", markers.into());
                }
                for (name, file) in [("--record", files.record), ("--stats", files.stats)] {
                    if let Some(file) = file {
                        option(name, file.into());
                    }
                }
                args
            }
        }
    }
    _ => {
        mod elsewhere {
            use super::CliError;
            use crate::device::Shard;
            use crate::model::Checkpoint;

            /// There is no way to another process on this system.
            pub(super) enum Way {}

            impl Way {
                pub(super) fn connect(self, _: &Checkpoint, _: usize) -> Result<Box<dyn Shard>, CliError> {
                    match self {}
                }
            }
        }

        impl Spread<'_> {
            fn way(
                &self,
                _: usize,
                _: &std::ops::Range<usize>,
                place: &Place,
            ) -> Result<Option<elsewhere::Way>, CliError> {
                match place {
                    Place::Device(_) => Ok(None),
                    other => Err(CliError::BadAddress {
                        given: other.to_string(),
                        why: "shards in other processes need a Unix".into(),
                    }),
                }
            }
        }
    }
}
