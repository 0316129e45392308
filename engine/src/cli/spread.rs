//! The target over the shards that `--shards` and `--split` ask for.

use std::ops::Range;
use std::path::Path;

use super::args::GenerateArgs;
use super::choose;
use super::error::CliError;
use super::output::Files;
use crate::device::{Device, Part, Shard};
use crate::load::Pair;
use crate::shard::{Address, Chain, Place, Placed, split};

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

        // What can be refused without weights is: devices are here, and whoever listens is there, the right one, and not
        // busy.
        let (mut devices, mut elsewhere) =
            (Vec::with_capacity(placed.len()), Vec::with_capacity(placed.len()));
        for Placed { layers, place } in &placed {
            devices.push(match place {
                Place::Device(name) if *name != self.args.models.device => {
                    Some(choose::device(name, self.threads)?)
                }
                _ => None,
            });
            elsewhere.push(match place {
                Place::At(address) => Some(self.listening(layers, address)?),
                _ => None,
            });
        }
        // Children read their weights while this process reads its own.
        let mut children = Vec::with_capacity(placed.len());
        for (index, Placed { layers, place }) in placed.iter().enumerate() {
            children.push(match place {
                Place::Spawn(device) => Some(self.start(index, layers, device)?),
                _ => None,
            });
        }
        let is_here =
            |placed: Option<&Placed>| placed.is_some_and(|placed| matches!(placed.place, Place::Device(_)));
        let ends = !is_here(placed.first()) || !is_here(placed.last());
        let last = placed.len() - 1;
        let mut here = Vec::with_capacity(placed.len());
        for (index, (placed, its_device)) in placed.into_iter().zip(&devices).enumerate() {
            let (embedding, head) = (index == 0 && !ends, index == last && !ends);
            here.push(match placed.place {
                Place::Device(_) => {
                    let part = Part { layers: placed.layers, embedding, head, context };
                    Some(its_device.as_deref().unwrap_or(device).load(checkpoint, part)?)
                }
                _ => None,
            });
        }
        let ends = ends
            .then(|| device.load(checkpoint, Part { layers: 0..0, embedding: true, head: true, context }))
            .transpose()?;
        let mut chain: Vec<Box<dyn Shard>> = Vec::with_capacity(here.len());
        for ((here, elsewhere), child) in here.into_iter().zip(elsewhere).zip(children) {
            let connected = child.map(|child| child.connect(self)).transpose()?;
            chain.extend(here.or(elsewhere).or(connected));
        }
        Ok(match ends {
            Some(ends) => Chain::with_ends(config, ends, chain)?,
            None => Chain::new(config, chain)?,
        })
    }
}

cfg_select! {
    unix => {
        use std::ffi::OsString;

        use super::args::DetailArg;
        use super::output::ChildFiles;
        use crate::shard::{Limits, Link, RemoteShard, ShardError, Spawned, Terms, Why};

        /// A child that reads its weights.
        struct Child {
            link: Link,
            layers: Range<usize>,
        }

        impl Child {
            fn connect(self, spread: &Spread<'_>) -> Result<Box<dyn Shard>, CliError> {
                spread.connect(self.link, &self.layers)
            }
        }

        impl Spread<'_> {
            /// The shard that listens at `address`.
            fn listening(&self, layers: &Range<usize>, address: &Address) -> Result<Box<dyn Shard>, CliError> {
                let insecure = self.args.spread.insecure;
                self.connect(Link::Listening { address: address.clone(), insecure }, layers)
            }

            fn connect(&self, link: Link, layers: &Range<usize>) -> Result<Box<dyn Shard>, CliError> {
                let checkpoint = &self.pair.target;
                let terms = Terms {
                    fingerprint: checkpoint.fingerprint(),
                    layers: layers.clone(),
                    width: checkpoint.config().hidden,
                };
                let shard = RemoteShard::connect(link, terms, Limits::default())?;
                shard.can_hold(self.context)?;
                Ok(Box::new(shard))
            }

            /// Starts the child that is shard `index`.
            fn start(&self, index: usize, layers: &Range<usize>, device: &str) -> Result<Child, CliError> {
                // Told before weights are read.
                crate::device::read(device)?;
                let name = Place::Spawn(device.into()).to_string();
                let failed = |why| ShardError { shard: format!("{}..{} at {name}", layers.start, layers.end), why };
                // What this process is called may have been replaced by a newer build.
                let program = std::env::current_exe().map_err(|error| failed(Why::CannotStart(error)))?;
                let args = self.child(layers, device, self.files.of_shard(index)?);
                let child = Spawned::start(name.clone(), program, args, &Limits::default()).map_err(failed)?;
                Ok(Child { link: Link::Spawned(child), layers: layers.clone() })
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
        /// There is no way to another process on this system.
        enum Child {}

        impl Child {
            fn connect(self, _: &Spread<'_>) -> Result<Box<dyn Shard>, CliError> {
                match self {}
            }
        }

        impl Spread<'_> {
            fn listening(&self, _: &Range<usize>, address: &Address) -> Result<Box<dyn Shard>, CliError> {
                Err(no_others(address.to_string()))
            }

            fn start(&self, _: usize, _: &Range<usize>, device: &str) -> Result<Child, CliError> {
                Err(no_others(Place::Spawn(device.into()).to_string()))
            }
        }

        fn no_others(given: String) -> CliError {
            CliError::BadAddress { given, why: "shards in other processes need a Unix".into() }
        }
    }
}
