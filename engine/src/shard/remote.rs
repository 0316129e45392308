//! A shard in another process, seen from its parent.
//!
//! To the chain it is a [`Shard`] like any other: hidden state in, hidden state out. Its cache is elsewhere,
//! so its length is mirrored here, and rolling back, copying aside and restoring are only noted; they travel
//! with the next request.
//!
//! When a request fails, the generation fails with it, and the parent lives on. The next generation begins
//! on an empty cache, so it may use the same connection, or a new one where the old one broke.

use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::wire::frame::{Connection, Frame, kind};
use super::wire::handshake::{self, Hello, Side, Terms, Welcome};
use super::wire::message::{
    AnswerFields, END, Keep, NO_RESTORE, PassFields, PassFrame, Refusal, SNAPSHOT, fields, path_number,
};
use super::wire::stream::{Alone, Fault};
use super::{Limits, Link, ShardError, Why, no_numbers};
use crate::device::{Answer, DeviceError, Input, Part, Pass, Shard, Want};

/// A shard in another process.
pub struct RemoteShard {
    // Before the link: a spawned child leaves when its connection is closed.
    connection: Option<Connection>,
    link: Link,
    terms: Terms,
    limits: Limits,
    part: Part,
    device: u32,
    /// The id of the last request.
    id: u64,
    /// Positions in its cache, once it has been told.
    cached: usize,
    /// Positions in the copy, once it has been told.
    aside: Option<usize>,
    wishes: Wishes,
    /// Requests that were given up and whose answers may still come on this connection.
    owed: u32,
}

/// What the shard is to be told with the next request, in this order.
#[derive(Clone, Copy, Debug, Default)]
struct Wishes {
    restore: Option<u32>,
    // Rolling back is implied: every request says what to keep.
    snapshot: bool,
}

impl RemoteShard {
    /// Connects over `link` and agrees with the shard on `terms`.
    ///
    /// # Errors
    /// [`ShardError`] when it is not there, or is not the shard that was looked for.
    pub fn connect(link: Link, terms: Terms, limits: Limits) -> Result<Self, ShardError> {
        let part = Part { layers: terms.layers.clone(), embedding: false, head: false, context: 0 };
        let mut shard = RemoteShard {
            connection: None,
            link,
            terms,
            limits,
            part,
            device: 0,
            id: 0,
            cached: 0,
            aside: None,
            wishes: Wishes::default(),
            owed: 0,
        };
        match shard.open() {
            Ok(()) => Ok(shard),
            Err(why) => Err(shard.named(why)),
        }
    }

    /// That its cache can hold `needed` positions.
    ///
    /// # Errors
    /// [`Why::TooSmall`].
    pub fn can_hold(&self, needed: usize) -> Result<(), ShardError> {
        let has = self.part.context;
        if has < needed { Err(self.named(Why::TooSmall { has, needed })) } else { Ok(()) }
    }

    fn named(&self, why: Why) -> ShardError {
        let layers = &self.terms.layers;
        ShardError { shard: format!("{}..{} at {}", layers.start, layers.end, self.link), why }
    }

    /// A connection with a handshake behind it.
    fn open(&mut self) -> Result<(), Why> {
        self.connection = None;
        let mut connection = Connection::new(self.link.open(&self.limits)?);
        self.id += 1;
        let wait = if self.link.is_spawned() { self.limits.load } else { self.limits.connect };
        let Welcome { context, device, .. } = shake_hands(&mut connection, &self.terms, self.id, wait)
            .map_err(|failed| match self.explain(failed, wait) {
                Why::TimedOut(limit) => Why::NotReady(limit),
                Why::Gone(how) if !self.link.is_spawned() => Why::NoHandshake(how),
                why => why,
            })?;
        self.device = device.get();
        let context = context.get() as usize;
        // A chain was built on the first answer; a shard that was restarted with another context must still do.
        if self.part.context == 0 {
            self.part.context = context;
        } else if context < self.part.context {
            let text = format!("its cache holds {context} positions now, and held {}", self.part.context);
            return Err(Why::Mismatch(text));
        }
        connection.cap_at(self.part.context, self.terms.width);
        self.connection = Some(connection);
        self.owed = 0;
        Ok(())
    }

    /// Sends one request and takes its answer. Whatever fails, the connection is dropped unless its framing
    /// is still known.
    fn request(&mut self, request: &Request<'_>, into: &mut Vec<f32>) -> Result<(), Why> {
        let begins = request.keep() == 0 && self.wishes.restore.is_none();
        if begins && self.connection.as_ref().is_some_and(Connection::is_over) {
            // It gave up on an idle parent, or was restarted: nothing is lost before a generation's first pass.
            self.connection = None;
        }
        if self.connection.is_none() {
            if !begins {
                return Err(Why::CacheLost);
            }
            self.open()?;
        }
        self.exchange(request, into).map_err(|failed| self.explain(failed, self.limits.answer))
    }

    fn exchange(&mut self, request: &Request<'_>, into: &mut Vec<f32>) -> Result<(), Failed> {
        let Some(connection) = &mut self.connection else { return Err(Failed::Fault(Fault::Closed)) };
        self.id += 1;
        let until = Instant::now() + self.limits.answer;
        if let Err(fault) = request.send(self.id, connection, until) {
            // A shard that closed before it heard may have said why.
            let said = next(connection, self.id, Instant::now(), &mut self.owed);
            // Half a request was sent, perhaps: nobody knows where the next frame would begin.
            self.connection = None;
            return Err(match said {
                Err(Failed::Broken(text)) => Failed::Broken(text),
                _ => fault.into(),
            });
        }
        let rows = request.rows();
        let answered = receive(connection, self.id, until, &mut self.owed, rows, self.terms.width, into);
        match &answered {
            // It drips, or stopped halfway.
            Err(Failed::Fault(Fault::TimedOut)) if connection.is_inside() => self.connection = None,
            // The answer may still come; it will be recognised by its id and dropped.
            Err(Failed::Fault(Fault::TimedOut)) => self.owed += 1,
            // A shard answers in order, so what came before is not owed any more.
            Ok(()) | Err(Failed::Refused(_) | Failed::BadAnswer(_) | Failed::NoNumbers(_)) => self.owed = 0,
            Err(Failed::Broken(_) | Failed::Babble | Failed::Fault(_)) => self.connection = None,
        }
        answered
    }

    fn explain(&mut self, failed: Failed, limit: Duration) -> Why {
        match failed {
            Failed::Refused(Refusal { text, .. }) => Why::Refused(text),
            Failed::BadAnswer(text) => Why::BadAnswer(text),
            Failed::NoNumbers(row) => Why::NoNumbers { row },
            Failed::Broken(text) => Why::Mismatch(text),
            Failed::Babble | Failed::Fault(Fault::TimedOut) => Why::TimedOut(limit),
            Failed::Fault(fault) => match self.link.ended() {
                Some(how) => Why::Gone(how),
                None => Why::Gone(fault.to_string()),
            },
        }
    }

    /// What the next request says about the cache, `flags` beside.
    fn keep(&self, flags: u32) -> Keep {
        let snapshot = if self.wishes.snapshot { SNAPSHOT } else { 0 };
        Keep {
            // Positions fit: the handshake gave the context as a `u32`.
            len: (self.cached as u32).into(),
            restore: self.wishes.restore.unwrap_or(NO_RESTORE).into(),
            flags: (snapshot | flags).into(),
        }
    }

    /// Tells the shard now what would else travel with the next request.
    fn commit(&mut self, flags: u32) -> Result<(), DeviceError> {
        let keep = self.keep(flags);
        let done = self.request(&Request::Commit(&keep), &mut Vec::new());
        self.wishes = Wishes::default();
        done.map_err(|why| self.named(why).into())
    }
}

impl Shard for RemoteShard {
    fn part(&self) -> &Part {
        &self.part
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn cached(&self) -> usize {
        self.cached
    }

    fn emits_leaf(&self) -> bool {
        true
    }

    fn forward(&mut self, pass: &Pass<'_>, answer: &mut Answer) -> Result<(), DeviceError> {
        let bad = |what: &str| Err(DeviceError::BadPass(what.into()));
        let (Input::Hidden(hidden), Want::Hidden) = (pass.input, &pass.want) else {
            return bad("a remote shard takes and gives hidden state alone");
        };
        let width = self.terms.width;
        let rows = hidden.len() / width;
        if rows == 0 || rows * width != hidden.len() {
            return bad("hidden state without whole rows");
        }
        if pass.start != self.cached || rows > self.part.context.saturating_sub(self.cached) {
            return bad("rows that do not follow the cache, or do not fit it");
        }
        answer.tokens.clear();
        answer.logits.clear();
        let frame = PassFrame {
            fields: PassFields {
                keep: self.keep(0),
                rows: (rows as u32).into(),
                width: (width as u32).into(),
                path: path_number(pass.path).into(),
                phases: 1.into(),
            },
            phase: pass.phase.wire().into(),
        };
        let done = self.request(&Request::Pass { frame: &frame, rows, hidden }, &mut answer.hidden);
        self.wishes = Wishes::default();
        done.map_err(|why| DeviceError::from(self.named(why)))?;
        self.cached += rows;
        Ok(())
    }

    fn roll_back(&mut self, len: usize) -> Result<(), DeviceError> {
        if len >= self.cached {
            return Ok(());
        }
        if len == 0 {
            // A new generation: what was wished for the old one's cache is no wish any more.
            self.wishes = Wishes::default();
            self.aside = None;
        } else if self.wishes.snapshot {
            // The copy is of more than what will be left.
            self.commit(0)?;
        }
        self.cached = len;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), DeviceError> {
        self.wishes.snapshot = true;
        self.aside = Some(self.cached);
        Ok(())
    }

    fn restore(&mut self, accepted: usize) -> Result<(), DeviceError> {
        if self.wishes.snapshot || self.wishes.restore.is_some() {
            self.commit(0)?;
        }
        let bad = |what: String| Err(DeviceError::BadPass(what));
        let Some(aside) = self.aside else {
            return bad("nothing was copied aside to restore".into());
        };
        let appended = self.cached.saturating_sub(aside);
        if accepted > appended {
            return bad(format!("{accepted} rows to keep, but {appended} were appended to the copy"));
        }
        self.wishes.restore = u32::try_from(accepted).ok();
        self.cached = aside + accepted;
        Ok(())
    }

    fn end_generation(&mut self) {
        // One that is late already would only be waited for once more.
        if self.connection.is_some() && self.owed == 0 {
            // The generation is what it is; a shard that fails now is missed by the next one.
            let _ = self.commit(END);
        }
    }

    fn close(&mut self) -> Result<(), DeviceError> {
        // Named while its process is known.
        let named = self.named(Why::Stopped);
        let until = Instant::now() + self.limits.leave;
        let connection = self.connection.take().filter(|_| self.link.is_spawned());
        let word = connection.and_then(|connection| last_word(connection, until));
        match self.link.close(until) {
            Some(status) if !status.success() => {
                let why = word.map_or_else(|| Why::Ended(status.to_string()), Why::Mismatch);
                Err(ShardError { why, ..named }.into())
            }
            _ => Ok(()),
        }
    }

    fn cache_rows(&mut self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), DeviceError> {
        Err(DeviceError::BadPass(format!("the cache of layer {layer} is in another process")))
    }
}

/// What is asked of a shard.
enum Request<'a> {
    Pass { frame: &'a PassFrame, rows: usize, hidden: &'a [f32] },
    Commit(&'a Keep),
}

impl Request<'_> {
    fn keep(&self) -> u32 {
        match self {
            Request::Pass { frame, .. } => frame.fields.keep.len.get(),
            Request::Commit(keep) => keep.len.get(),
        }
    }

    /// Rows of the answer.
    fn rows(&self) -> usize {
        match self {
            Request::Pass { rows, .. } => *rows,
            Request::Commit(_) => 0,
        }
    }

    fn send(&self, id: u64, connection: &mut Connection, over: Instant) -> Result<(), Fault> {
        let (kind, fields, payload) = match self {
            Request::Pass { frame, hidden, .. } => (kind::PASS, frame.as_bytes(), hidden.as_bytes()),
            Request::Commit(keep) => (kind::COMMIT, keep.as_bytes(), &[][..]),
        };
        connection.send(Frame { kind, id }, fields, payload, &mut Alone, over)
    }
}

/// Why a request has no answer.
enum Failed {
    Fault(Fault),
    /// A typed error: the shard lives and the connection is good.
    Refused(Refusal),
    /// Framed well and wrong.
    BadAnswer(String),
    /// Framed well, and this row of its hidden state is NaN or infinite.
    NoNumbers(usize),
    /// More older answers came than were owed, and none to this request: there may be no end of them.
    Babble,
    /// The two do not fit each other, or the shard said why it closes.
    Broken(String),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Failed::Fault(fault)
    }
}

/// Waits for the answer to request `id`; older ones are dropped, the `owed` ones without blame.
fn receive(
    connection: &mut Connection,
    id: u64,
    until: Instant,
    owed: &mut u32,
    rows: usize,
    width: usize,
    into: &mut Vec<f32>,
) -> Result<(), Failed> {
    let over = match next(connection, id, until, owed)? {
        (kind::ANSWER, over) => over,
        (other, _) => return Err(Failed::BadAnswer(format!("it is of kind {other}"))),
    };
    let AnswerFields { rows: its_rows, width: its_width } = match fields(connection, &mut Alone, over)? {
        Ok(fields) => fields,
        Err(refusal) => return Err(Failed::BadAnswer(refusal.text)),
    };
    let shape = (its_rows.get() as usize, its_width.get() as usize);
    if shape != (rows, width) {
        return Err(Failed::BadAnswer(format!("it is {} x {}, not {rows} x {width}", shape.0, shape.1)));
    }
    let values = rows * width;
    let (left, expected) = (connection.left(), values as u64 * 4);
    if left != expected {
        return Err(Failed::BadAnswer(format!("its hidden state has {left} bytes, not {expected}")));
    }
    into.resize(values, 0.0);
    connection.take(into.as_mut_bytes(), &mut Alone, over)?;
    no_numbers(into, width).map_or(Ok(()), |row| Err(Failed::NoNumbers(row)))
}

/// The next frame that answers request `id`: its kind, and when it must be over. Errors are taken here.
fn next(
    connection: &mut Connection,
    id: u64,
    until: Instant,
    owed: &mut u32,
) -> Result<(u32, Instant), Failed> {
    let mut babbles = false;
    loop {
        // However late it begins, and however slowly it comes.
        let (frame, over) = match connection.next(&mut Alone, Some(until), || until) {
            Err(Fault::TimedOut) if babbles => return Err(Failed::Babble),
            next => next?,
        };
        let error = frame.kind == kind::ERROR;
        if error && frame.id == 0 {
            // The shard could not tell which request it was, or took none: it closes.
            return Err(Failed::Broken(Refusal::take(connection, &mut Alone, over)?.text));
        }
        if frame.id > id {
            return Err(Failed::BadAnswer(format!("it answers request {}, and {id} was the last", frame.id)));
        }
        if frame.id < id {
            babbles |= *owed == 0;
            *owed = owed.saturating_sub(1);
            // Who always has the next frame ready is never waited for.
            if babbles && Instant::now() >= until {
                return Err(Failed::Babble);
            }
            continue;
        }
        if error {
            return Err(Failed::Refused(Refusal::take(connection, &mut Alone, over)?));
        }
        return Ok((frame.kind, over));
    }
}

/// Ends a connection, and hears why a child cannot leave well, should it say so.
fn last_word(mut connection: Connection, until: Instant) -> Option<String> {
    connection.end_sending();
    while Instant::now() < until {
        let (frame, over) = connection.next(&mut Alone, Some(until), || until).ok()?;
        if frame.kind == kind::ERROR && frame.id == 0 {
            return Refusal::take(&mut connection, &mut Alone, over).ok().map(|refusal| refusal.text);
        }
    }
    None
}

fn shake_hands(connection: &mut Connection, terms: &Terms, id: u64, wait: Duration) -> Result<Welcome, Failed> {
    let until = Instant::now() + wait;
    let hello = Hello::new(terms);
    let sent = connection.send(Frame { kind: kind::HELLO, id }, hello.as_bytes(), &[], &mut Alone, until);
    // A shard that closed before it heard may have said why.
    let (its_kind, over) = match (next(connection, id, until, &mut 0), sent) {
        (Err(Failed::Fault(_)), Err(fault)) => return Err(fault.into()),
        (Err(Failed::Refused(refusal)), _) => return Err(Failed::Broken(refusal.text)),
        (next, _) => next?,
    };
    if its_kind != kind::WELCOME {
        return Err(Failed::Broken(format!("it answered the handshake with a frame of kind {its_kind}")));
    }
    let welcome: Welcome = match handshake::read(connection, Side::Shard, &mut Alone, over)? {
        Ok(welcome) => welcome,
        Err(refusal) => return Err(Failed::Broken(refusal.text)),
    };
    welcome.hello.agree(terms, Side::Shard).map_err(|refusal| Failed::Broken(refusal.text))?;
    if welcome.context.get() == 0 {
        return Err(Failed::Broken("its cache holds no position".into()));
    }
    Ok(welcome)
}
