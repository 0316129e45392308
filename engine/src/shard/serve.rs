//! A remote shard, seen from inside: it waits for its parent, runs its layers, and answers.
//!
//! One parent is served at a time. Another one that connects meanwhile is told so at once and closed; it may
//! try again. All waiting is in one place, [`Door`], which also hears the wish to leave.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use marker_core::{Markers, range};
use rustix::event::{PollFd, PollFlags};
use zerocopy::IntoBytes;

use super::listen::{Listener, Stop};
use super::wire::frame::{Connection, Frame, kind};
use super::wire::handshake::{self, Hello, Side, Terms, Welcome};
use super::wire::message::{
    AnswerFields, Asked, Code, END, Judged, Keep, NO_RESTORE, Refusal, SNAPSHOT, judge_commit, judge_pass,
};
use super::wire::stream::{Fault, Stream, Wait, poll_until};
use super::{Limits, leaf, no_numbers};
use crate::device::{Answer, Input, Pass, Shard, Want};

/// How long a connection that is given up is kept for its last word to arrive.
const LINGER: Duration = Duration::from_millis(200);
/// How long a listener that cannot accept is left alone: descriptors may be free again then.
const PAUSE: Duration = Duration::from_millis(200);

/// A shard that is served to parents elsewhere.
pub struct Service<'a> {
    /// The layers.
    pub shard: Box<dyn Shard>,
    /// What a parent must agree with.
    pub terms: Terms,
    /// Who hears this shard's leaves.
    pub markers: Markers<'a>,
    /// How long is waited.
    pub limits: Limits,
    /// Called after each generation, before its parent is told that it is over.
    pub ended: &'a mut dyn FnMut(),
    /// Called with what a person here should know: refusals and failures, a line each. The parent is told too.
    pub tell: &'a mut dyn FnMut(&str),
}

impl Service<'_> {
    /// Serves whoever connects to `listener`, one after the other, until `stop` asks to leave.
    ///
    /// # Errors
    /// When the listener itself fails; what a parent does wrong is no error here.
    pub fn listen(&mut self, listener: &Listener, stop: &Stop) -> std::io::Result<()> {
        let mut door = Door { stop: stop.as_fd(), listener: None };
        loop {
            match door.wait(listener.as_fd(), PollFlags::IN, None) {
                Ok(()) => {}
                Err(Fault::Stopped) => return Ok(()),
                Err(fault) => return Err(std::io::Error::other(fault.to_string())),
            }
            // Whoever knocked may be gone again, or this process may be out of descriptors for a while.
            match listener.accept() {
                Ok(stream) => {
                    let mut door = Door { stop: stop.as_fd(), listener: Some(listener) };
                    self.session(stream, Some(self.limits.idle), &mut door);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    (self.tell)(&format!("cannot accept a connection: {error}"));
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Serves the parent at the other end of `stream` until it ends or `stop` asks to leave.
    ///
    /// # Errors
    /// When the socket fails, or its parent is too slow.
    pub fn inherited(&mut self, stream: UnixStream, stop: &Stop) -> std::io::Result<()> {
        let mut door = Door { stop: stop.as_fd(), listener: None };
        match self.session(Stream::unix(stream)?, None, &mut door) {
            Fault::Closed | Fault::Stopped | Fault::Unframed(_) => Ok(()),
            fault => Err(std::io::Error::other(fault.to_string())),
        }
    }

    /// One parent, from its hello to its end, and what that was.
    fn session(&mut self, stream: Stream, idle: Option<Duration>, door: &mut Door<'_>) -> Fault {
        let mut session = Session {
            connection: Connection::new(stream),
            service: self,
            door,
            last: 0,
            hidden: Vec::new(),
            answer: Answer::default(),
            under_way: false,
        };
        let why = match session.handshake(idle) {
            Ok(()) => session.requests(idle),
            Err(fault) => fault,
        };
        if session.under_way {
            (session.service.ended)();
        }
        let Session { mut connection, service, door, .. } = session;
        match &why {
            Fault::Closed | Fault::Stopped => {}
            Fault::Unframed(text) => {
                (service.tell)(&format!("closed a connection: {text}"));
                let refusal = Refusal::new(Code::Framing, format!("this is no frame of mine: {text}"));
                // Who knocks now is the next one, and is not turned away.
                door.listener = None;
                // It is unlikely to listen.
                let _ = refusal.send(0, &mut connection, door, Instant::now() + LINGER);
                connection.part(door, LINGER);
            }
            fault => (service.tell)(&format!("closed a connection: {fault}")),
        }
        why
    }
}

/// Tells the parent at the other end of `stream` why this process leaves. False where it cannot be told.
pub fn last_word(stream: UnixStream, why: &str) -> bool {
    let refusal = Refusal::new(Code::Device, why);
    Stream::unix(stream).is_ok_and(|stream| {
        refusal.send(0, &mut Connection::new(stream), &mut NoWait, Instant::now()).is_ok()
    })
}

/// One connection of a parent.
struct Session<'s, 'a, 'd> {
    connection: Connection,
    service: &'s mut Service<'a>,
    door: &'s mut Door<'d>,
    /// The id of the last request that made sense.
    last: u64,
    /// Hidden state on its way in, `[rows, width]`; grown as far as a pass ever needed.
    hidden: Vec<f32>,
    answer: Answer,
    /// A pass was made since a generation ended.
    under_way: bool,
}

impl Session<'_, '_, '_> {
    /// Waits for a hello that this shard agrees with, and welcomes it.
    fn handshake(&mut self, idle: Option<Duration>) -> Result<(), Fault> {
        // A parent of this process may read its weights first; a stranger has to speak.
        let until = idle.map(|_| Instant::now() + self.service.limits.connect);
        loop {
            let limit = self.service.limits.connect;
            let (frame, over) = self.connection.next(self.door, until, || Instant::now() + limit)?;
            match self.judge_hello(frame, over)? {
                Ok(()) => return Ok(()),
                Err(refusal) => {
                    (self.service.tell)(&format!("refused a parent: {refusal}"));
                    self.refuse(&refusal, frame.id, over)?;
                }
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Fault::TimedOut);
            }
        }
    }

    fn judge_hello(&mut self, frame: Frame, over: Instant) -> Result<Judged<()>, Fault> {
        if frame.kind != kind::HELLO {
            return Ok(Err(Refusal::new(Code::Kind, "the handshake comes first")));
        }
        let hello: Hello = match handshake::read(&mut self.connection, Side::Parent, self.door, over)? {
            Ok(hello) => hello,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(refusal) = hello.agree(&self.service.terms, Side::Parent) {
            return Ok(Err(refusal));
        }
        if let Err(refusal) = self.fresh(frame.id) {
            return Ok(Err(refusal));
        }
        // Whatever an earlier parent left is no part of this one's.
        if let Err(error) = self.service.shard.roll_back(0) {
            return Ok(Err(Refusal::new(Code::Device, error.to_string())));
        }
        let context = u32::try_from(self.service.shard.part().context).unwrap_or(u32::MAX);
        let welcome = Welcome { hello, context: context.into(), device: self.service.shard.device().into() };
        let welcomed = Frame { kind: kind::WELCOME, id: frame.id };
        self.connection.send(welcomed, welcome.as_bytes(), &[], self.door, over)?;
        self.connection.cap_at(context as usize, self.service.terms.width);
        Ok(Ok(()))
    }

    /// Serves requests until something ends the connection.
    fn requests(&mut self, idle: Option<Duration>) -> Fault {
        loop {
            let until = idle.map(|idle| Instant::now() + idle);
            let limit = self.service.limits.frame;
            let served = self
                .connection
                .next(self.door, until, || Instant::now() + limit)
                .and_then(|(frame, over)| self.request(frame, over));
            if let Err(fault) = served {
                return fault;
            }
        }
    }

    fn request(&mut self, frame: Frame, over: Instant) -> Result<(), Fault> {
        let done = match frame.kind {
            kind::PASS => self.pass(frame.id, over)?,
            kind::COMMIT => self.commit(frame.id, over)?,
            other => Err(Refusal::new(Code::Kind, format!("there is no request of kind {other} here"))),
        };
        match done {
            Ok(rows) => {
                let fields = AnswerFields {
                    rows: (rows as u32).into(),
                    width: (self.service.terms.width as u32).into(),
                };
                let hidden = if rows == 0 { &[][..] } else { &self.answer.hidden };
                let over = Instant::now() + self.service.limits.frame;
                let answer = Frame { kind: kind::ANSWER, id: frame.id };
                self.connection.send(answer, fields.as_bytes(), hidden.as_bytes(), self.door, over)
            }
            Err(refusal) => {
                (self.service.tell)(&format!("refused request {}: {refusal}", frame.id));
                self.refuse(&refusal, frame.id, over)
            }
        }
    }

    /// Drains what is left of a request's body and answers it with an error.
    fn refuse(&mut self, refusal: &Refusal, id: u64, over: Instant) -> Result<(), Fault> {
        self.connection.drain(self.door, over)?;
        refusal.send(id, &mut self.connection, self.door, Instant::now() + self.service.limits.frame)
    }

    /// A request's id is new, or it is refused.
    fn fresh(&mut self, id: u64) -> Judged<()> {
        if id <= self.last {
            let text = format!("request {id} is stale: {} was the last one", self.last);
            return Err(Refusal::new(Code::Stale, text));
        }
        self.last = id;
        Ok(())
    }

    /// Runs a pass; the rows of its answer.
    fn pass(&mut self, id: u64, over: Instant) -> Result<Judged<usize>, Fault> {
        let (width, context) = (self.service.terms.width, self.service.shard.part().context);
        let judged = judge_pass(width, context, &mut self.connection, self.door, over)?
            .and_then(|asked| self.has(asked.keep).map(|()| asked))
            .and_then(|asked| self.fresh(id).map(|()| asked));
        let asked = match judged {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let values = asked.rows * width;
        if self.hidden.len() < values {
            self.hidden.resize(values, 0.0);
        }
        self.connection.take(self.hidden[..values].as_mut_bytes(), self.door, over)?;
        if let Some(row) = no_numbers(&self.hidden[..values], width) {
            let text = format!("row {row} of the hidden state that the parent sent is NaN or infinite");
            return Ok(Err(Refusal::new(Code::Numbers, text)));
        }
        Ok(self.run(&asked, values).map(|()| asked.rows))
    }

    fn run(&mut self, asked: &Asked, values: usize) -> Judged<()> {
        if asked.keep.len == 0 && self.under_way {
            // The generation before this one was given up without a word.
            (self.service.ended)();
        }
        self.settle(asked.keep)?;
        self.under_way = true;
        let Service { shard, markers, .. } = &mut *self.service;
        range!(*markers, leaf(&**shard, asked.phase, asked.rows));
        let pass = Pass {
            input: Input::Hidden(&self.hidden[..values]),
            start: shard.cached(),
            phase: asked.phase,
            path: asked.path,
            want: Want::Hidden,
        };
        shard
            .forward(&pass, &mut self.answer)
            .map_err(|error| Refusal::new(Code::Device, error.to_string()))?;
        if self.answer.hidden.len() != values {
            let text = format!("the device gave {} values for {values}", self.answer.hidden.len());
            return Err(Refusal::new(Code::Device, text));
        }
        Ok(())
    }

    fn commit(&mut self, id: u64, over: Instant) -> Result<Judged<usize>, Fault> {
        let judged = judge_commit(&mut self.connection, self.door, over)?
            .and_then(|keep| self.has(keep).map(|()| keep))
            .and_then(|keep| self.fresh(id).map(|()| keep))
            .and_then(|keep| self.settle(keep).map(|()| keep));
        Ok(judged.map(|keep| {
            if keep.flags.get() & END != 0 && self.under_way {
                self.under_way = false;
                (self.service.ended)();
            }
            0
        }))
    }

    /// Whether the cache has the positions that are to be kept, as far as that can be known before restoring.
    fn has(&self, keep: Keep) -> Judged<()> {
        let cached = self.service.shard.cached();
        if keep.restore == NO_RESTORE && keep.len.get() as usize > cached {
            let text = format!("{} positions are to be kept, and the cache has {cached}", keep.len);
            return Err(Refusal::new(Code::Cache, text));
        }
        Ok(())
    }

    /// Restores, rolls back and copies aside, as asked.
    fn settle(&mut self, keep: Keep) -> Judged<()> {
        let shard = &mut self.service.shard;
        let failed = |error: crate::device::DeviceError| Refusal::new(Code::Device, error.to_string());
        if keep.restore != NO_RESTORE {
            shard.restore(keep.restore.get() as usize).map_err(failed)?;
        }
        let (len, cached) = (keep.len.get() as usize, shard.cached());
        if len > cached {
            let text = format!("{len} positions are to be kept, and the restored cache has {cached}");
            return Err(Refusal::new(Code::Cache, text));
        }
        shard.roll_back(len).map_err(failed)?;
        if keep.flags.get() & SNAPSHOT != 0 {
            shard.snapshot().map_err(failed)?;
        }
        Ok(())
    }
}

/// The one place where a shard waits: for its parent, for the wish to leave, and for others who knock.
struct Door<'a> {
    stop: BorrowedFd<'a>,
    listener: Option<&'a Listener>,
}

impl Wait for Door<'_> {
    fn wait(
        &mut self,
        socket: BorrowedFd<'_>,
        ready: PollFlags,
        until: Option<Instant>,
    ) -> Result<(), Fault> {
        let mut listener = self.listener;
        loop {
            let parent = || PollFd::from_borrowed_fd(socket, ready);
            let mut sockets = [
                parent(),
                PollFd::from_borrowed_fd(self.stop, PollFlags::IN),
                // Without a listener the stop twice.
                PollFd::from_borrowed_fd(listener.map_or(self.stop, AsFd::as_fd), PollFlags::IN),
            ];
            poll_until(&mut sockets, until)?;
            let [parents, stop, knock] = sockets.map(|socket| !socket.revents().is_empty());
            if stop {
                return Err(Fault::Stopped);
            }
            if parents {
                return Ok(());
            }
            // If the parent ended since it was looked at, whoever knocks is the next one.
            if poll_until(&mut [parent()], Some(Instant::now())).is_ok() {
                return Ok(());
            }
            if knock
                && let Some(there) = listener
                && !turn_away(there)
            {
                // Whoever knocks waits until the parent has said something: there is no hearing him out now.
                listener = None;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Fault::TimedOut);
            }
        }
    }
}

/// Tells one who knocks that somebody else is being served. False where he cannot be let in to be told, because this
/// process has no descriptor left.
fn turn_away(listener: &Listener) -> bool {
    let stream = match listener.accept() {
        Ok(stream) => stream,
        Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
    };
    let refusal = Refusal::new(Code::Busy, "it is serving another parent: try again when that is done");
    // A fresh socket has room for it, so this does not wait; if it had none there would be nobody to tell.
    let _ = refusal.send(0, &mut Connection::new(stream), &mut NoWait, Instant::now());
    true
}

/// Waits for nobody.
struct NoWait;

impl Wait for NoWait {
    fn wait(&mut self, _: BorrowedFd<'_>, _: PollFlags, _: Option<Instant>) -> Result<(), Fault> {
        Err(Fault::TimedOut)
    }
}
