//! `phasemark generate`: one request, from the command line to its last token.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Once;
use std::time::Instant;

use super::args::GenerateArgs;
use super::error::CliError;
use super::output::{Completion, Files};
use super::prompt::Prompt;
use super::spread::Spread;
use super::stats::{self, Stats};
use super::{choose, say};
use crate::decode::{Drafting, Request, Sampling};
use crate::load::Pair;
use crate::markers::{self, Assembly, Choice};

/// Generates. `show` turns the recorder on, if this build has one, so that there are phases to see.
pub(super) fn run(args: &GenerateArgs, show: bool) -> Result<ExitCode, CliError> {
    // Everything that can be refused without a model is, and then everything that can be without weights.
    let threads = choose::threads(args.models.threads)?;
    let device = choose::device(&args.models.device, threads)?;
    let record =
        args.witness.record.is_some() || (show && markers::compiled_in().any(|name| name == "record"));
    let choice = chosen_markers(args.witness.markers.as_deref())?;
    // What is wrong with a variable is told once, not by every child.
    let childrens = choice.complaint.as_ref().map_or(args.witness.markers.as_deref(), |_| Some("off"));
    let markers = Assembly::new(&choice, args.witness.detail.into(), record)?;
    let files = Files::check(args.witness.record.as_deref(), args.witness.stats.as_deref())?;
    if args.context_shift {
        return Err(CliError::ContextShift);
    }
    if args.stop.iter().any(String::is_empty) {
        return Err(CliError::EmptyStop);
    }
    let prompt = Prompt::read(&args.prompt, args.system.as_deref())?;
    let sampling = choose::sampling(&args.sampling, || RandomState::new().hash_one(Instant::now()));
    let (target, draft) = choose::folders(&args.models)?;

    let began = Instant::now();
    let pair = Pair::open(&target, draft.as_deref())?;
    let (prompt, stop_tokens) = prompt.ids(&pair.tokenizer)?;
    let request = Request {
        max_tokens: args.max_tokens,
        sampling,
        verify: args.verify.into(),
        prefill: args.prefill.into(),
        prefill_chunk: args.prefill_chunk,
        ignore_eos: args.ignore_eos,
        stop_tokens,
        ..Request::new(prompt)
    };
    let request = choose::drafting(&args.models, args.draft_tokens, request);
    let positions = pair.check(&request)?;
    let spread = Spread {
        pair: &pair,
        folder: &target,
        args,
        files: &files,
        threads,
        markers: childrens,
        context: positions,
    };
    let mut engine = pair.around(spread.target(&*device)?, &*device, positions)?;
    let load_seconds = began.elapsed().as_secs_f64();
    let draft = match (&draft, request.drafting) {
        (_, Drafting::Lookup) => "drafts looked up in the text".into(),
        (Some(draft), _) => format!("draft {}", draft.display()),
        (None, _) => "no draft".into(),
    };
    say!("target {}, {draft}: loaded in {load_seconds:.2} s, {threads} threads", target.display());

    if let Some(Sampling { temperature, seed, .. }) = request.sampling
        && temperature > 0.0
    {
        say!("seed {seed}");
    }

    let mut completion = Completion::new(pair.tokenizer.stream_until(args.stop.clone()), args.print_ids);
    markers.markers().name_thread("phasemark");
    let generation = engine.generate(&request, markers.markers(), &mut |token| completion.emit(token))?;
    let text = completion.finish(&generation.tokens)?;

    // Text on a terminal ends wherever it ends; what follows starts a line of its own.
    if std::io::stdout().is_terminal() {
        say!();
    }
    if let Some(recorded) = markers.recorded() {
        let _ = write!(std::io::stderr(), "\n{}\n", stats::phase_table(&recorded));
    } else if show {
        say!("(no table of phases: this build has no recorder)");
    }
    say!("{}", stats::summary(request.prompt.len(), &generation));
    if let Some(bytes) = device.peak_memory() {
        say!("{}: {:.1} MB of its memory at the peak", args.models.device, bytes as f64 / 1e6);
    }
    // Its children write their files when they leave.
    let left = engine.close();
    files.write_record(&markers)?;
    files.write_stats(|| Stats::new(&request, &generation, &text, &markers, load_seconds).json())?;
    left?;
    Ok(ExitCode::SUCCESS)
}

/// What the flag and the environment choose; a variable that names what is not there is told once a process.
pub(super) fn chosen_markers(flag: Option<&str>) -> Result<Choice, CliError> {
    static TOLD: Once = Once::new();
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let choice = markers::choose(flag, lookup)?;
    if let Some(complaint) = &choice.complaint {
        TOLD.call_once(|| say!("phasemark: {complaint}; markers are off"));
    }
    Ok(choice)
}
