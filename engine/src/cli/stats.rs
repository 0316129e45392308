//! What a generation was, as JSON for programs and as a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::decode::{Generation, Request, Sampling, Verify};
use crate::markers::{Assembly, Recorded};

/// The content of a `--stats` file.
#[derive(Debug, Serialize)]
pub(super) struct Stats {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    drafted: usize,
    accepted: usize,
    /// Null when nothing was drafted.
    acceptance_rate: Option<f64>,
    /// After the prefill, not times the shards.
    target_passes: usize,
    /// Whether blocks adapted to measured costs: then what was drafted depends on the clock, and the text does not.
    adapts: bool,
    /// Null when the prefill gave all there is.
    tokens_per_target_pass: Option<f64>,
    /// Of the UTF-8 completion, special tokens left out.
    text_sha256: String,
    /// Ranges that this process emitted.
    phases: BTreeMap<String, u64>,
    markers: BTreeMap<&'static str, Emitted>,
    seconds: Seconds,
    /// Tokens after the first over decode seconds; null when there was no decode.
    tokens_per_second: Option<f64>,
}

/// What one backend did.
#[derive(Debug, Serialize)]
struct Emitted {
    pushed: u64,
    popped: u64,
    failed: u64,
    dropped: u64,
}

#[derive(Debug, Serialize)]
struct Seconds {
    load: f64,
    prefill: f64,
    decode: f64,
}

impl Stats {
    /// Sums up. `text` is the completion's.
    pub(super) fn new(
        request: &Request,
        generation: &Generation,
        text: &str,
        markers: &Assembly,
        load: f64,
    ) -> Self {
        let (prompt_tokens, completion_tokens) = (request.prompt.len(), generation.tokens.len());
        Stats {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            drafted: generation.drafted(),
            accepted: generation.accepted(),
            acceptance_rate: generation.acceptance_rate(),
            target_passes: generation.target_passes,
            adapts: adapts(request, generation),
            tokens_per_target_pass: generation.tokens_per_target_pass(),
            text_sha256: hex(&Sha256::digest(text)),
            phases: markers.phases(),
            markers: emitted(markers),
            seconds: Seconds { load, prefill: generation.prefill_seconds, decode: generation.decode_seconds },
            tokens_per_second: tokens_per_second(generation),
        }
    }

    /// The JSON text.
    pub(super) fn json(&self) -> std::io::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Whether the clock had a say in how much was drafted.
fn adapts(request: &Request, generation: &Generation) -> bool {
    let greedy = request.sampling.as_ref().is_none_or(Sampling::is_greedy);
    request.adapt && greedy && request.verify == Verify::Batched && !generation.rounds.is_empty()
}

/// What each backend did.
fn emitted(markers: &Assembly) -> BTreeMap<&'static str, Emitted> {
    let emitted = |counters: marker_core::Counters| Emitted {
        pushed: counters.pushed,
        popped: counters.popped,
        failed: counters.failed,
        dropped: counters.dropped,
    };
    markers.counters().into_iter().map(|(name, counters)| (name, emitted(counters))).collect()
}

/// The content of a shard's `--stats` file.
#[cfg(unix)]
#[derive(Debug, Serialize)]
pub(super) struct ShardStats {
    /// First layer, and the one behind the last.
    layers: [usize; 2],
    /// Generations that it took part in.
    generations: u64,
    /// Ranges that this process emitted.
    phases: BTreeMap<String, u64>,
    markers: BTreeMap<&'static str, Emitted>,
}

#[cfg(unix)]
impl ShardStats {
    pub(super) fn new(layers: &std::ops::Range<usize>, generations: u64, markers: &Assembly) -> Self {
        ShardStats {
            layers: [layers.start, layers.end],
            generations,
            phases: markers.phases(),
            markers: emitted(markers),
        }
    }

    /// The JSON text.
    pub(super) fn json(&self) -> std::io::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// Tokens after the first over the seconds after it.
pub(super) fn tokens_per_second(generation: &Generation) -> Option<f64> {
    (generation.target_passes > 0 && generation.decode_seconds > 0.0)
        .then(|| (generation.tokens.len() - 1) as f64 / generation.decode_seconds)
}

/// Bytes as lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// One line about a generation.
pub(super) fn summary(prompt_tokens: usize, generation: &Generation) -> String {
    let mut line = format!("{prompt_tokens} prompt tokens, {} generated", generation.tokens.len());
    if let Some(rate) = tokens_per_second(generation) {
        let _ = write!(line, ", {rate:.1} tokens/s");
    }
    if let Some(rate) = generation.acceptance_rate() {
        let (accepted, drafted) = (generation.accepted(), generation.drafted());
        let _ = write!(line, "; {accepted}/{drafted} drafted tokens accepted ({:.0} %)", 100.0 * rate);
    }
    if let Some(tokens) = generation.tokens_per_target_pass() {
        let _ = write!(line, ", {tokens:.2} tokens per target pass");
    }
    line
}

/// The phases with their counts and host times, enclosing ones first.
pub(super) fn phase_table(recorded: &[Recorded]) -> String {
    let mut rows: Vec<(&str, u64, f64)> = Vec::new();
    for Recorded { phase, seconds } in recorded {
        match rows.iter_mut().find(|(name, ..)| name == phase) {
            Some((_, count, total)) => {
                *count += 1;
                *total += seconds;
            }
            None => rows.push((phase, 1, *seconds)),
        }
    }
    let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max(5);
    let mut table = format!("{:width$}  {:>5}  {:>12}  {:>12}\n", "phase", "count", "host ms", "mean ms");
    for (phase, count, total) in rows {
        let (total, mean) = (1e3 * total, 1e3 * total / count as f64);
        let _ = writeln!(table, "{phase:width$}  {count:>5}  {total:>12.2}  {mean:>12.3}");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Finish, Round};

    #[test]
    fn blocks_adapt_to_the_clock_where_a_greedy_request_of_batched_rounds_asks_for_it() {
        let generation = |rounds| Generation {
            tokens: vec![1, 2],
            rounds,
            kept: 0,
            target_passes: 1,
            finish: Finish::Budget,
            prefill_seconds: 1.0,
            decode_seconds: 1.0,
        };
        let speculative = generation(vec![Round { drafted: 1, accepted: 0 }]);
        let asked = Request { adapt: true, ..Request::new(vec![1]) };
        assert!(adapts(&asked, &speculative));
        assert!(!adapts(&asked, &generation(Vec::new())), "nothing was drafted");
        let sampled = |temperature| Some(Sampling { temperature, ..Sampling::default() });
        assert!(adapts(&Request { sampling: sampled(0.0), ..asked.clone() }, &speculative));
        for other in [
            Request { adapt: false, ..asked.clone() },
            Request { sampling: sampled(1.0), ..asked.clone() },
            Request { verify: Verify::ReferenceExact, ..asked.clone() },
        ] {
            assert!(!adapts(&other, &speculative), "{other:?}");
        }
    }

    #[test]
    fn a_table_sums_up_each_phase_in_the_order_in_which_they_began() {
        let range = |phase: &str, seconds| Recorded { phase: phase.into(), seconds };
        let table = phase_table(&[
            range("ds4.prefill dense", 0.25),
            range("ds4.layer_range dense", 0.2),
            range("ds4.layer_range verify", 0.001),
            range("ds4.layer_range verify", 0.002),
        ]);
        let lines: Vec<_> = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[0], ["phase", "count", "host", "ms", "mean", "ms"]);
        assert_eq!(lines[1], ["ds4.prefill", "dense", "1", "250.00", "250.000"]);
        assert_eq!(lines[3], ["ds4.layer_range", "verify", "2", "3.00", "1.500"]);
        assert_eq!(lines.len(), 4);
    }
}
