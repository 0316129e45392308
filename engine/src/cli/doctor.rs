//! `phasemark doctor`: what is compiled in, what would run, from where, and why not.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::args::{DoctorArgs, ModelArgs};
use super::error::CliError;
use super::generate::chosen_markers;
use super::{load, output};
use crate::device;
use crate::markers::{self, ChosenBy, Wanted};
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
    let because = choice.complaint.map(|why| format!(": {why}")).unwrap_or_default();
    line(&mut report, "markers", &format!("{wanted} ({by}{because})"));

    line(&mut report, "devices", &format!("{} ({} threads)", device::KINDS.join(", "), load::threads(None)?));
    #[cfg(feature = "cuda")]
    line(&mut report, "cuda", &device::cuda::describe());
    match load::folders(&ModelArgs::default()) {
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
    let _ = writeln!(report, "{what:<12} {}", says.replace('\n', " "));
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
