//! Conversations: a model's own template turns messages into a prompt.
//!
//! A template is a program from the internet. It runs in an interpreter that reaches nothing outside, on a thread of
//! its own, with bounds on its length, its steps and what it writes, and what goes wrong in it is one sentence. What it
//! holds in memory has no bound: a string that is repeated often enough is more than any machine has.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error as TemplateError, ErrorKind, State, Value, context};

use crate::Error;
use crate::model::Tokenizer;

/// Steps that a template may take: far more than a long conversation needs. Values nest no deeper than that.
const FUEL: u64 = 1_000_000;
/// Bytes of a template at most; those in use have a tenth of it.
const LONGEST: usize = 1 << 16;
/// Bytes of a prompt at most.
const MOST: usize = 1 << 24;
/// Bytes of stack: a template of that length and that many steps can nest deeply. What is not used is not taken.
const STACK: usize = 1 << 30;
/// The widest indent or field that a template may ask for.
const WIDEST: usize = 99;

/// Why a conversation became no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model was not made for conversations, or does not say how.
    #[error("the model has no chat template: use --prompt, or a model that was made for conversations")]
    NoTemplate,
    /// The template does not work.
    #[error("the model's chat template fails ({problem}): use --prompt, or correct the template")]
    Template {
        /// What went wrong, and in which line.
        problem: String,
    },
    /// The template refuses the messages, for example a system message that the model does not know.
    #[error("the model's chat template refuses these messages: {reason}")]
    Refused {
        /// In the template's words.
        reason: String,
    },
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of `role`.
    pub fn new(role: &str, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }

    /// What the person asks.
    pub fn user(content: impl Into<String>) -> Self {
        Message::new("user", content)
    }

    /// What the model answered.
    pub fn assistant(content: impl Into<String>) -> Self {
        Message::new("assistant", content)
    }

    /// What the model is told about its part.
    pub fn system(content: impl Into<String>) -> Self {
        Message::new("system", content)
    }
}

/// A model's template, ready for use.
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    end_of_turn: Vec<u32>,
}

impl ChatTemplate {
    /// The template of the model whose tokenizer this is.
    ///
    /// # Errors
    /// [`ChatError::NoTemplate`].
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let mut template = ChatTemplate {
            source: tokenizer.chat_template().ok_or(ChatError::NoTemplate)?.to_owned(),
            bos: tokenizer.bos().unwrap_or_default().to_owned(),
            eos: tokenizer.eos().unwrap_or_default().to_owned(),
            end_of_turn: Vec::new(),
        };
        template.end_of_turn = template.turn_ends(tokenizer);
        Ok(template)
    }

    /// The prompt for the answer to the last of `messages`.
    ///
    /// # Errors
    /// [`ChatError`] when the template fails or refuses the messages.
    pub fn prompt(&self, messages: &[Message]) -> Result<String, ChatError> {
        self.render(messages, true)
    }

    /// The tokens that end an answer, beside those that end every text of the model.
    pub fn end_of_turn(&self) -> &[u32] {
        &self.end_of_turn
    }

    /// Models differ in how they end a turn, and not all say so in their configuration; the template itself shows
    /// it: the special token that it puts behind an answer.
    fn turn_ends(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        const ANSWER: &str = "phasemark";
        let known = tokenizer.eos().and_then(|eos| tokenizer.id(eos));
        let messages = [Message::user("?"), Message::assistant(ANSWER)];
        let rendered = self.render(&messages, false).unwrap_or_default();
        let behind = rendered.rsplit_once(ANSWER).map(|(_, behind)| behind.trim_start());
        let first = behind.and_then(|behind| tokenizer.encode(behind).ok()?.first().copied());
        known.into_iter().chain(first.filter(|id| tokenizer.is_special(*id) && Some(*id) != known)).collect()
    }

    fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let failed = |problem: String| ChatError::Template { problem };
        if self.source.len() > LONGEST {
            return Err(failed(format!("it has {} bytes, and may have {LONGEST}", self.source.len())));
        }
        std::thread::scope(|threads| {
            let render = || self.interpret(messages, add_generation_prompt);
            let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
            let rendered = thread.spawn_scoped(threads, render).map_err(|error| failed(error.to_string()))?;
            rendered.join().unwrap_or_else(|_| Err(failed("the interpreter gave up on it".into())))
        })
    }

    fn interpret(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        let mut environment = Environment::new();
        // What the templates were written for: transformers sets Jinja up like this.
        let mut syntax = minijinja::syntax::SyntaxConfig::builder();
        syntax.trim_blocks(true).lstrip_blocks(true);
        environment.set_syntax(syntax.build().map_err(|error| failed(&error))?);
        environment.set_unknown_method_callback(method);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |reason: String| -> Result<String, TemplateError> {
            Err(TemplateError::new(ErrorKind::InvalidOperation, format!("{REFUSED}{reason}")))
        });
        environment.set_fuel(Some(FUEL));
        let turn = |Message { role, content }: &Message| context! { role => role.as_str(), content => content.as_str() };
        let turns: Value = messages.iter().map(turn).collect();
        let context = context! {
            messages => turns, add_generation_prompt, bos_token => self.bos.as_str(), eos_token => self.eos.as_str(),
        };
        let template = environment.template_from_str(&self.source).map_err(|error| failed(&error))?;
        let mut prompt = Bounded(Vec::new());
        template.render_captured_to(context, &mut prompt).map_err(|error| failed(&error))?;
        String::from_utf8(prompt.0).map_err(|error| ChatError::Template { problem: error.to_string() })
    }
}

/// Takes so many bytes and no more.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MOST - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's methods, but for a field so wide that no memory holds it.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, TemplateError> {
    let digits = |text: &str| text.split(|c: char| !c.is_ascii_digit()).map(str::len).max().unwrap_or(0);
    if name == "format" && value.as_str().is_some_and(|text| digits(text) > WIDEST.ilog10() as usize + 1) {
        return Err(TemplateError::new(ErrorKind::InvalidOperation, "a field of such a width"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Jinja's filter, but for an indent so wide that no memory holds it.
fn to_json(value: &Value, indent: Option<Value>, named: Kwargs) -> Result<Value, TemplateError> {
    let wide = |indent: &Value| indent.as_usize().is_some_and(|indent| indent > WIDEST);
    if indent.as_ref().is_some_and(wide) || named.peek::<Value>("indent").is_ok_and(|indent| wide(&indent)) {
        return Err(TemplateError::new(ErrorKind::InvalidOperation, "an indent of such a width"));
    }
    minijinja::filters::tojson(value, indent, named)
}

/// Marks what a template says itself through `raise_exception`.
const REFUSED: &str = "refused: ";

fn failed(error: &TemplateError) -> ChatError {
    let line = |text: &str| crate::model::short(text);
    if let Some(reason) = error.detail().and_then(|detail| detail.strip_prefix(REFUSED)) {
        return ChatError::Refused { reason: line(reason) };
    }
    let at = error.line().map_or_else(String::new, |number| format!(" in line {number}"));
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    ChatError::Template { problem: line(&format!("{}{detail}{at}", error.kind())) }
}

/// Turns messages into token ids and the tokens that end the answer.
///
/// # Errors
/// [`ChatError`], or a text that the tokenizer cannot spell.
pub fn prompt_ids(tokenizer: &Tokenizer, messages: &[Message]) -> Result<(Vec<u32>, Vec<u32>), Error> {
    let template = ChatTemplate::of(tokenizer)?;
    let prompt = template.prompt(messages)?;
    Ok((tokenizer.encode(&prompt)?, template.end_of_turn))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate { source: source.into(), bos: "<s>".into(), eos: "</s>".into(), end_of_turn: Vec::new() }
    }

    /// The template of `SmolLM2`, with its default system message.
    const CHATML: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ \
        '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + \
        message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
        '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn messages_become_a_prompt() {
        let prompt = template(CHATML).prompt(&[Message::user("Who?")]).unwrap();
        assert_eq!(
            prompt,
            "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
        );
        let prompt = template(CHATML).prompt(&[
            Message::system("Short."),
            Message::user("a"),
            Message::assistant("b"),
            Message::user("c"),
        ]);
        assert!(prompt.unwrap().starts_with("<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\na<"));
    }

    #[test]
    fn a_template_that_would_take_all_is_one_error() {
        let nested = |levels: &str, inner: &str| {
            format!(
                "{{% set ns = namespace(s=[1, 2]) %}}{{% for i in range({levels}) %}}{{% set ns.s = {inner} %}}{{% endfor %}}{{{{ ns.s }}}}"
            )
        };
        for (source, says) in [
            (format!("{{{{ {}1 }}}}", "not ".repeat(30_000)), "and may have 65536"),
            ("{{ 'x'.format() ~ '{:>999999999999}'.format('a') }}".into(), "a field of such a width"),
            ("{{ '{0:.99999999999}'.format(1.5) }}".into(), "a field of such a width"),
            ("{{ [1] | tojson(indent=99999999999) }}".into(), "an indent of such a width"),
            ("{{ [1] | tojson(99999999999) }}".into(), "an indent of such a width"),
            (nested("45", "[ns.s, ns.s]"), "fails"),
            (
                "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".into(),
                "fuel",
            ),
        ] {
            let error = template(&source).prompt(&[Message::user("?")]).unwrap_err().to_string();
            assert!(error.contains(says), "{}: {error}", &source[..60]);
        }
        // Deep, and within what a thread of its own can take.
        for source in [
            format!("{{{{ {}1 }}}}", "not ".repeat(16_000)),
            format!("{{{{ 1{} }}}}", "+1".repeat(32_000)),
            nested("90000", "[ns.s]"),
        ] {
            let _ = template(&source).prompt(&[Message::user("?")]);
        }
        assert_eq!(
            template("{{ [1] | tojson(indent=2) }}").prompt(&[Message::user("?")]).unwrap(),
            "[\n  1\n]"
        );
    }

    #[test]
    fn what_templates_in_use_rely_on_is_there() {
        let source = "{{ bos_token }}
            {%- for message in messages %}
                {%- if not message.content.startswith('x') %}
                    {{- message.role.upper() + ':' + message['content'].strip() | trim + eos_token }}
                {%- endif %}
                {%- set words = message.content.split(' ') %}
                {%- if words[-1] is defined and tools is not defined %}{{ words | length }}{% endif %}
            {%- endfor %}";
        assert_eq!(template(source).prompt(&[Message::user(" a b ")]).unwrap(), "<s>USER:a b</s>4");
    }

    #[test]
    fn a_template_that_fails_refuses_or_never_ends_is_one_clear_sentence() {
        let told = |source: &str| template(source).prompt(&[Message::user("a")]).unwrap_err().to_string();
        assert!(told("\n{% for %}").contains("line 2"), "{}", told("\n{% for %}"));
        assert!(told("{{ messages.nothing.at_all }}").contains("fails ("));
        assert!(told("{{ no_such_function() }}").contains("no_such_function"));
        assert_eq!(
            told("{{ raise_exception('Only user\nand assistant!') }}"),
            "the model's chat template refuses these messages: Only user\\nand assistant!"
        );
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(told(endless).contains("fuel"), "{}", told(endless));
    }
}
