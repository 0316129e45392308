//! `phasetrace`: read what any profiler wrote, prove that it is right, show it.
#![forbid(unsafe_code)]

use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trace::check::{self, Report};
use trace::diff::{Difference, diff};
use trace::model::{Finding, Severity, Trace, printable};
use trace::{Error, export, read, report, tree};

/// Reads what profilers wrote about a run (rocprofv3's CSV, JSON and rocpd, nsys's SQLite, our own recording) and
/// answers whether its phases are right.
#[derive(Parser)]
#[command(name = "phasetrace", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Is it right? Exit 0 fine, 1 findings, 2 unreadable.
    Check {
        /// Files of one run: they are merged by host and process.
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// What the engine says that it emitted; several files are summed.
        #[arg(long, value_name = "FILE.json")]
        stats: Vec<PathBuf>,
    },
    /// The phase tree, counted and timed.
    Tree {
        /// Files of one run.
        #[arg(required = true)]
        traces: Vec<PathBuf>,
    },
    /// Do two traces show the same phases? Exit 0 same, 1 different, 2 unreadable.
    Diff {
        /// One trace.
        a: PathBuf,
        /// The other.
        b: PathBuf,
    },
    /// One self-contained page to look at.
    Report {
        /// Files of one run; two files that are no one run are compared.
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// The page.
        #[arg(short, long)]
        output: PathBuf,
        /// Files of another run, to be compared with the first.
        #[arg(long, value_name = "TRACE")]
        against: Vec<PathBuf>,
        /// What the engine says that it emitted in the first run; several files are summed.
        #[arg(long, value_name = "FILE.json")]
        stats: Vec<PathBuf>,
    },
    /// Perfetto and Chrome JSON.
    Export {
        /// Files of one run.
        #[arg(required = true)]
        traces: Vec<PathBuf>,
        /// The file to write.
        #[arg(short, long)]
        output: PathBuf,
    },
}

const UNREADABLE: u8 = 2;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut out = Output { to: BufWriter::new(io::stdout().lock()), closed: false };
    let answer = run(&arguments.command, &mut out);
    let answer = answer.and_then(|code| match out.flush() {
        Ok(()) => Ok(code),
        Err(source) => Err(standard_output(source)),
    });
    match answer {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nothing is left to do when standard error is closed too.
            let _ = writeln!(io::stderr(), "phasetrace: {error}");
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Standard output. Who closed it has read enough, and the exit code is still the answer.
struct Output<W> {
    to: W,
    closed: bool,
}

impl<W: Write> Output<W> {
    fn unless_closed<T>(
        &mut self,
        otherwise: T,
        write: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.closed {
            return Ok(otherwise);
        }
        match write(&mut self.to) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(otherwise)
            }
            done => done,
        }
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_closed(bytes.len(), |to| to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_closed((), Write::flush)
    }
}

fn standard_output(source: io::Error) -> Error {
    Error::Write { file: PathBuf::from("standard output"), source }
}

fn run(command: &Command, out: &mut dyn Write) -> Result<u8, Error> {
    match command {
        Command::Check { traces, stats } => {
            let counts = if stats.is_empty() { None } else { Some(check::counts(stats)?) };
            let mut trace = read(traces)?;
            let report = check::check(&mut trace, counts.as_ref());
            print_check(&trace, &report, out).map_err(standard_output)?;
            Ok(u8::from(!report.is_fine()))
        }
        Command::Tree { traces } => {
            tree::print(&read(traces)?, out).map_err(standard_output)?;
            Ok(0)
        }
        Command::Diff { a, b } => {
            let (first, second) = (read(&[a])?, read(&[b])?);
            let (code, words) = match diff((&name(a), &first), (&name(b), &second)) {
                Difference::Same { ranges: 0, .. } => {
                    (0, "same: neither holds a range of the vocabulary".to_owned())
                }
                Difference::Same { ranges, threads } => (
                    0,
                    format!(
                        "same: {ranges} ranges on {threads} thread{}",
                        if threads == 1 { "" } else { "s" }
                    ),
                ),
                Difference::Different(words) => (1, format!("different: {words}")),
            };
            writeln!(out, "{words}").map_err(standard_output)?;
            Ok(code)
        }
        Command::Report { traces, output, against, stats } => {
            let counts = if stats.is_empty() { None } else { Some(check::counts(stats)?) };
            let (mut first, second) = match (against.as_slice(), &counts) {
                // The engine's counts are those of one run.
                ([], Some(_)) => (read(traces)?, None),
                ([], None) => report::runs(traces)?,
                _ => (read(traces)?, Some(read(against)?)),
            };
            report::write(&mut first, counts.as_ref(), second, output)?;
            Ok(0)
        }
        Command::Export { traces, output } => {
            export::write(&read(traces)?, output)?;
            Ok(0)
        }
    }
}

fn name(file: &Path) -> String {
    file.display().to_string()
}

fn print_check(trace: &Trace, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let findings = &report.findings;
    for severity in [Severity::Finding, Severity::Note] {
        for finding in findings.list.iter().filter(|finding| finding.severity == severity) {
            print_finding(finding, out)?;
        }
        let left = findings.left_out(severity);
        if left > 0 {
            writeln!(
                out,
                "... and {left} more {}",
                if severity == Severity::Note { "notes" } else { "findings" }
            )?;
        }
    }
    let of = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    writeln!(
        out,
        "{}, {} on {} of {}: {}, {}",
        of(report.ranges, "range"),
        of(report.marks, "mark"),
        of(trace.threads.len() as u64, "thread"),
        of(trace.processes.len() as u64, "process").replace("processs", "processes"),
        of(findings.findings, "finding"),
        of(findings.notes, "note"),
    )
}

fn print_finding(finding: &Finding, out: &mut dyn Write) -> io::Result<()> {
    let kind = if finding.severity == Severity::Finding { "finding" } else { "note" };
    write!(out, "{kind}: ")?;
    if !finding.place.is_empty() {
        write!(out, "{}: ", finding.place)?;
    }
    if let Some(label) = &finding.label {
        write!(out, "\"{}\": ", printable(label))?;
    }
    writeln!(out, "{}", finding.text)
}
