//! `phasemark doctor`: what is compiled in, what would run, from where, and why not.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use marker_core::Detail;

use super::args::{DoctorArgs, ModelArgs};
use super::error::CliError;
use super::generate::chosen_markers;
use super::{choose, output};
use crate::device;
use crate::markers::{self, Assembly, ChosenBy, Wanted};
use crate::model::Checkpoint;

/// Looks around and prints what it saw.
pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let mut report = format!("phasemark {}\n", env!("CARGO_PKG_VERSION"));
    let compiled_in: Vec<_> = markers::compiled_in().collect();
    line(
        &mut report,
        "compiled in",
        &if compiled_in.is_empty() { "null".into() } else { compiled_in.join(", ") },
    );

    let choice = chosen_markers(args.markers.as_deref())?;
    let wanted = match &choice.wanted {
        Wanted::Off => "off".into(),
        Wanted::Auto => "auto".into(),
        Wanted::Named(names) => names.join(", "),
    };
    let by = match choice.by {
        ChosenBy::Flag(flag) => format!("by {flag}"),
        ChosenBy::Variable(name) => format!("by {name}={}", std::env::var(name).unwrap_or_default()),
        ChosenBy::Nothing => "nothing is set".into(),
    };
    let open: Vec<_> = Assembly::new(&choice, Detail::Phases, false)?.names().collect();
    let because = choice.complaint.map(|why| format!(": {why}")).unwrap_or_default();
    line(
        &mut report,
        "markers",
        &format!(
            "{wanted} ({by}{because}); open: {}",
            if open.is_empty() { "none".into() } else { open.join(", ") }
        ),
    );

    for (name, found) in markers::reports() {
        line(&mut report, name, &found);
    }
    line(
        &mut report,
        "devices",
        &format!("{} ({} threads)", device::KINDS.join(", "), choose::threads(None)?),
    );
    #[cfg(feature = "cuda")]
    line(&mut report, "cuda", &device::cuda::describe());
    #[cfg(feature = "hip")]
    line(&mut report, "hip", &device::hip::describe());
    match choose::folders(&ModelArgs::default()) {
        Ok((target, draft)) => {
            line(&mut report, "target", &model(&target));
            line(&mut report, "draft", &draft.map_or_else(|| "none".into(), |draft| model(&draft)));
        }
        Err(why) => line(&mut report, "models", &why.to_string()),
    }
    output::print(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn line(report: &mut String, what: &str, says: &str) {
    // What has several lines stays one block beside its name.
    let _ = writeln!(report, "{what:<12} {}", says.replace('\n', "\n             "));
}

fn model(folder: &Path) -> String {
    match Checkpoint::open(folder) {
        Ok(checkpoint) => {
            let config = checkpoint.config();
            format!(
                "{}: {:?}, {} layers, hidden {}, vocabulary {}, context {}",
                folder.display(),
                config.architecture,
                config.layers,
                config.hidden,
                config.vocab,
                config.context
            )
        }
        Err(why) => format!("{}: {why}", folder.display()),
    }
}
