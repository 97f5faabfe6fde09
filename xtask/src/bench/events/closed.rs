//! Many connections with one request at a time each, on one thread: a connection that waits for a response costs nothing. With
//! a thread for each, the server would wake one per response, at its own expense, and the machine would switch between them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Interval of checks for the end.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};
const READ: usize = 64 << 10;
const EVENTS: usize = 256;

/// Supplies requests and receives responses.
pub trait Load<'a> {
    /// `None` at the end of the measurement.
    fn next(&mut self, connection: usize) -> Option<&'a [u8]>;

    fn answered(&mut self, began: Instant);
}

struct Connection {
    stream: TcpStream,
    began: Instant,
    /// A partial response.
    answer: Vec<u8>,
}

/// Runs until no connection has another request.
pub fn run<'a>(port: u16, connections: usize, load: &mut impl Load<'a>) -> Result<()> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let (mut open, mut left) = (Vec::with_capacity(connections), connections);
    for number in 0..connections {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll::add(&poll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
        let mut connection = Connection {
            stream,
            began: Instant::now(),
            answer: Vec::new(),
        };
        match load.next(number) {
            Some(request) => connection.ask(request)?,
            None => left -= 1,
        }
        open.push(connection);
    }
    let (mut buffer, mut events) = (vec![0; READ], [MaybeUninit::<Event>::uninit(); EVENTS]);
    while left > 0 {
        let (ready, _) = epoll::wait(&poll, &mut events, Some(&LOOK))?;
        for event in ready {
            let number = usize::try_from(event.data.u64())?;
            let connection = open.get_mut(number).context("an event of no connection")?;
            if !connection.has_answer(&mut buffer)? {
                continue;
            }
            load.answered(connection.began);
            match load.next(number) {
                Some(request) => connection.ask(request)?,
                None => left -= 1,
            }
        }
    }
    Ok(())
}

impl Connection {
    fn ask(&mut self, request: &[u8]) -> Result<()> {
        self.began = Instant::now();
        let written = self.stream.write(request)?;
        ensure!(
            written == request.len(),
            "a request does not fit into the socket buffer"
        );
        Ok(())
    }

    fn has_answer(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let read = match self.stream.read(buffer) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let came = buffer.get(..read).unwrap_or_default();
        if self.answer.is_empty() && is_whole(came)? {
            return Ok(true);
        }
        self.answer.extend_from_slice(came);
        let whole = is_whole(&self.answer)?;
        if whole {
            self.answer.clear();
        }
        Ok(whole)
    }
}

/// Whether it is a complete head and body; refusals are errors.
fn is_whole(answer: &[u8]) -> Result<bool> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(false);
    };
    let (head, body) = answer.split_at(end + 4);
    let head = std::str::from_utf8(head)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("a response without its length")?.parse()?;
    if body.len() < length {
        return Ok(false);
    }
    ensure!(
        head.starts_with("HTTP/1.1 200 "),
        "refused: {}",
        String::from_utf8_lossy(body)
    );
    ensure!(body.len() == length, "more than one response");
    Ok(true)
}
