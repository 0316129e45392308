//! The engine as a library, on the shipped pair: many requests, cancelled anywhere, with kept prefixes; and the
//! example that shows how.

#![allow(clippy::unwrap_used, reason = "tests, but not in functions that say so")]

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::chat::{ChatTemplate, Message};
use engine::decode::{Drafting, Engine, Finish, Generation, Prefill, Request, Sampling};
use engine::device::cpu::Cpu;
use engine::device::{Device as _, Part};
use engine::load::Pair;
use engine::model::Checkpoint;
use engine::session::{Options, Session};
use engine::shard::Chain;
use marker_core::Markers;

#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../examples/session.rs"]
mod example;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|pad|>\n{% endfor %}\
    {% if add_generation_prompt %}assistant: {% endif %}";

fn pair() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/pair")
}

/// The shipped target with a template: it babbles in a chat too.
fn talking() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(pair().join("target")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

fn session(target: &Path) -> Session<'static> {
    let pair = Pair::open(target, Some(&self::pair().join("draft"))).unwrap();
    let engine = pair.load(&Cpu::new(1), 256).unwrap();
    Session::new(pair, engine)
}

/// Exact prefill: what is kept was computed by its very kernels.
fn options(max_tokens: usize) -> Options {
    let request =
        Request { max_tokens, prefill: Prefill::Exact, ignore_eos: true, ..Request::new(Vec::new()) };
    Options { request, ..Options::default() }
}

fn silent(_: &str) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn the_next_turn_reads_only_what_is_new_and_says_what_a_fresh_session_says() {
    let folder = talking();
    let mut kept = session(folder.path());
    let mut messages = vec![Message::user("In the beginning")];
    for turn in 0..3 {
        let reply = kept.chat(&messages, &options(12), &mut silent).unwrap();
        let fresh = session(folder.path()).chat(&messages, &options(12), &mut silent).unwrap();
        assert_eq!(reply.text, fresh.text);
        assert_eq!(fresh.generation.kept, 0);
        assert_eq!(reply.generation.kept > 8, turn > 0, "{}", reply.generation.kept);
        messages.push(Message::assistant(reply.text));
        messages.push(Message::user("And then?"));
    }
}

#[test]
fn a_template_shows_what_ends_a_turn() {
    let folder = talking();
    let pair = Pair::open(folder.path(), None).unwrap();
    let template = ChatTemplate::of(&pair.tokenizer).unwrap();
    let ids = ["<|endoftext|>", "<|pad|>"].map(|token| pair.tokenizer.id(token).unwrap());
    assert_eq!(template.end_of_turn(), ids);
}

#[test]
fn a_request_can_be_cancelled_at_any_token_and_the_session_goes_on() {
    let prompt = "1 And it came to pass in those days, that";
    let mut used = session(&pair().join("target"));
    let whole = used.complete(prompt, &options(16), &mut silent).unwrap();
    for after in 1..16 {
        let mut seen = 0;
        let mut cancel = |_: &str| {
            seen += 1;
            if seen == after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let reply = used.complete(prompt, &options(16), &mut cancel).unwrap();
        assert_eq!(reply.generation.tokens, whole.generation.tokens[..after]);
        assert_eq!(reply.generation.finish, Finish::Cancelled);
        assert!(whole.text.starts_with(reply.text.trim_end_matches('\u{fffd}')));
    }
    assert_eq!(used.complete(prompt, &options(16), &mut silent).unwrap().text, whole.text);
}

#[test]
fn a_stop_string_is_told_and_a_text_beyond_the_context_refused() {
    let mut session = session(&pair().join("target"));
    let whole = session.complete("It was a", &options(24), &mut silent).unwrap().text;
    let stop = whole[whole.len() / 2..].chars().take(4).collect::<String>();
    let with_stop = Options { stop: vec![stop.clone()], ..options(24) };
    let mut streamed = String::new();
    let reply = session.complete("It was a", &with_stop, &mut |piece| {
        streamed.push_str(piece);
        ControlFlow::Continue(())
    });
    let reply = reply.unwrap();
    assert_eq!(reply.stopped_by.as_deref(), Some(stop.as_str()));
    assert_eq!(
        (reply.text.as_str(), streamed.as_str()),
        (whole.split(&stop).next().unwrap(), reply.text.as_str())
    );

    let error = session.complete("It was a", &options(254), &mut silent).unwrap_err().to_string();
    assert!(error.contains("need 257 positions, but the target model has 256"), "{error}");
    let error = session.chat(&[Message::user("a")], &options(4), &mut silent).unwrap_err().to_string();
    assert!(error.starts_with("the model has no chat template"), "{error}");
    assert_eq!(session.complete("It was a", &options(24), &mut silent).unwrap().text, whole);
}

#[test]
fn the_example_works_with_and_without_a_template() {
    let draft = pair().join("draft");
    assert!(example::talk(&pair().join("target"), Some(&draft)).unwrap() > 0);
    assert!(example::talk(talking().path(), Some(&draft)).unwrap() > 0);
}

/// An engine over `cuts` of the target's layers.
fn split(threads: usize, cuts: &[usize]) -> Engine {
    let cpu = Cpu::new(threads);
    let chain = |model: &str, cuts: &[usize]| {
        let checkpoint = Checkpoint::open(&pair().join(model)).unwrap();
        let config = checkpoint.config();
        let ends: Vec<usize> = [cuts, &[config.layers]].concat();
        let shards = ends.iter().scan(0, |start, &end| {
            let layers = std::mem::replace(start, end)..end;
            let part =
                Part { embedding: layers.start == 0, head: end == config.layers, layers, context: 512 };
            Some(cpu.load(&checkpoint, part).unwrap())
        });
        Chain::new(config, shards.collect()).unwrap()
    };
    Engine::new(chain("target", cuts), Some(chain("draft", &[])), vec![0]).unwrap()
}

fn run(engine: &mut Engine, request: &Request) -> Generation {
    engine.generate(request, Markers::OFF, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_seeded_run_is_the_same_on_any_threads_and_shards() {
    let mut engines = [split(1, &[]), split(2, &[]), split(1, &[3]), split(2, &[1, 5])];
    let prompt: Vec<u32> = (100..120).collect();
    for drafting in [Drafting::Nothing, Drafting::Model, Drafting::Lookup] {
        for adapt in [false, true] {
            let sampling = Sampling { top_p: 0.95, repetition_penalty: 1.1, seed: 11, ..Sampling::default() };
            let request = Request {
                drafting,
                adapt,
                sampling: Some(sampling),
                max_tokens: 32,
                ignore_eos: true,
                ..Request::new(prompt.repeat(2))
            };
            let [expected, rest @ ..] = engines.each_mut().map(|engine| run(engine, &request));
            for got in rest {
                assert_eq!(
                    (&got.tokens, &got.rounds),
                    (&expected.tokens, &expected.rounds),
                    "{drafting:?} {adapt}"
                );
            }
        }
    }
}

#[test]
fn look_ups_and_adapted_blocks_change_no_greedy_token_and_copying_is_drafted_well() {
    let mut engine = split(1, &[]);
    let tokenizer = Pair::open(&pair().join("target"), None).unwrap().tokenizer;
    let passage = "And the LORD spake unto Moses, saying,\n";
    for (text, copies) in [(passage.repeat(8), true), ("impl<T> Iterator for".to_owned(), false)] {
        let plain = Request {
            drafting: Drafting::Nothing,
            max_tokens: 60,
            ignore_eos: true,
            ..Request::new(tokenizer.encode(&text).unwrap())
        };
        let expected = run(&mut engine, &plain).tokens;
        for (drafting, adapt) in
            [(Drafting::Lookup, false), (Drafting::Lookup, true), (Drafting::Model, true)]
        {
            let got = run(&mut engine, &Request { drafting, adapt, draft_tokens: 8, ..plain.clone() });
            assert_eq!(got.tokens, expected, "{drafting:?} {adapt} {text}");
            if copies {
                assert!(got.tokens_per_target_pass().unwrap() > 2.0, "{:?}", got.rounds);
            }
        }
    }
}
