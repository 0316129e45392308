//! Load once, ask often: `cargo run --release --example session [MODEL [DRAFT]]`.
//!
//! With a model that was made for conversations this is a chat of two turns, the second of which reads only what
//! is new; with the shipped pair, which was not, it completes two texts.

use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::chat::Message;
use engine::decode::{Request, Sampling};
use engine::device::cpu::Cpu;
use engine::load::Pair;
use engine::session::{Options, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/pair");
    let mut folders = std::env::args_os().skip(1).map(PathBuf::from);
    let (target, draft) = match folders.next() {
        Some(target) => (target, folders.next()),
        None => (models.join("target"), Some(models.join("draft"))),
    };
    let kept = talk(&target, draft.as_deref())?;
    eprintln!("\n{kept} tokens of the second prompt were there already");
    Ok(())
}

/// Two requests, the second of which goes on from the first.
pub(crate) fn talk(target: &Path, draft: Option<&Path>) -> Result<usize, engine::Error> {
    // Open, then load: caches for 512 positions, which bound the longest conversation.
    let pair = Pair::open(target, draft)?;
    let engine = pair.load(&Cpu::new(2), 512)?;
    let talks = pair.tokenizer.chat_template().is_some();
    let mut session = Session::new(pair, engine);

    let options = Options {
        request: Request {
            max_tokens: 48,
            sampling: Some(Sampling { temperature: 0.7, top_p: 0.9, seed: 1, ..Sampling::default() }),
            ..Request::new(Vec::new())
        },
        stop: vec!["\n\n".into()],
    };
    // Text comes as it is made. Breaking here cancels, at any token.
    let mut print = |piece: &str| {
        print!("{piece}");
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };

    let reply = if talks {
        let mut messages = vec![Message::user("What is the capital of France?")];
        let reply = session.chat(&messages, &options, &mut print)?;
        messages.push(Message::assistant(reply.text));
        messages.push(Message::user("And of Italy?"));
        session.chat(&messages, &options, &mut print)?
    } else {
        let prompt = "And it came to pass in those days, that";
        let reply = session.complete(prompt, &options, &mut print)?;
        session.complete(&format!("{prompt}{} Then", reply.text), &options, &mut print)?
    };
    Ok(reply.generation.kept)
}
