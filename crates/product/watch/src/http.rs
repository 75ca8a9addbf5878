// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What watches ERB over HTTP: a thread of its own, which asks for the status as `erb status` does.
//!
//! # Invariants
//! 1. Whoever drives the data path never waits for a reader: it only answers a request for the
//!    status, at most once in [`FRESH`]; for the history once in [`EVERY`](crate::history::EVERY).
//! 2. Reading changes nothing: GET and HEAD alone. The thread has no capabilities, and a low priority.
//! 3. Bounded: [`CONNECTIONS_MAX`] connections of [`LIFE_MAX`] each, heads of [`HEAD_BYTES_MAX`].
//!    A new connection takes the oldest one's place, so who only connects keeps nobody out.
//! 4. Beyond loopback a token is needed. On loopback without one a request names an address or
//!    localhost as its host, else a page from elsewhere could read by a name of its own (DNS rebinding).
//! 5. Keys and addresses of clients are told only by [`details`], and only if that was asked for.
//! 6. The dashboard's files alone are had without the token: a browser has to begin somewhere.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use caps::CapSet;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use subtle::ConstantTimeEq;
use tokio::sync::Mutex;

use crate::answer::Answer;
use crate::dashboard;
use crate::details::{self, Detail, Details};
use crate::history::{EVERY, History};
use crate::text::{Format, text};
use crate::watched::Watched;

/// Connections at once: some Prometheus servers and some people.
pub const CONNECTIONS_MAX: usize = 32;
/// A connection's life: several scrapes at the usual 15 s.
pub const LIFE_MAX: Duration = Duration::from_secs(60);
/// Time for a request's head.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes of a request's head; the least that hyper takes.
pub const HEAD_BYTES_MAX: usize = 8192;
/// A status this old is given again.
pub const FRESH: Duration = Duration::from_millis(250);
/// Shortest token: what is shorter can be tried out.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Priority of the thread, as nice(1) counts.
const NICE: libc::c_int = 10;

/// Between tries to take an address that the daemon before still has.
const TAKE_AGAIN: Duration = Duration::from_millis(100);
/// Tries after which the log says that it is still not to be had.
const TAKE_TRIES: u32 = 100;
/// After an accept that failed, out of descriptors for one.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// For whom a status is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Somebody who reads now.
    Reader,
    /// The history, which nobody may ever read: nothing shall be kept awake for it.
    History,
}

/// Why it is not served there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is beyond loopback, and there is no token.
    #[error(
        "others can reach {0}: name a token by --metrics-token-file, or an address of loopback"
    )]
    TokenNeeded(SocketAddr),
    /// The token is too short.
    #[error("the token has {0} bytes, and must have {TOKEN_BYTES_MIN} at least")]
    TokenShort(usize),
    /// Nobody could show the token.
    #[error(
        "the token has a blank, a control character or one beyond ASCII: a reader cannot send that"
    )]
    TokenOdd,
    /// Somebody listens there.
    #[error("another process listens on {0}: choose another address")]
    Taken(SocketAddr),
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: {reason}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        reason: io::Error,
    },
}

/// Where it is served, and to whom. Listens already, if the address was free.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    token: Option<Vec<u8>>,
    listener: Option<TcpListener>,
    dashboard: bool,
    details: Option<Details>,
}

impl Endpoint {
    /// Whether it may be served there, and to whom.
    ///
    /// # Errors
    /// [`Error::TokenNeeded`], [`Error::TokenShort`], [`Error::TokenOdd`].
    pub fn fits(address: SocketAddr, token: Option<&[u8]>) -> Result<(), Error> {
        match token {
            None if !address.ip().to_canonical().is_loopback() => Err(Error::TokenNeeded(address)),
            Some(token) if token.len() < TOKEN_BYTES_MIN => Err(Error::TokenShort(token.len())),
            Some(token) if !token.iter().all(u8::is_ascii_graphic) => Err(Error::TokenOdd),
            _ => Ok(()),
        }
    }

    /// Takes the address. If somebody has it, [`Self::must_be_bound`] says so, and
    /// [`Self::serve`] waits until it is free: a daemon that is replaced lets it go when it ends.
    ///
    /// # Errors
    /// [`Error`].
    pub fn bind(address: SocketAddr, token: Option<Vec<u8>>) -> Result<Self, Error> {
        Self::fits(address, token.as_deref())?;
        let listener = match TcpListener::bind(address) {
            Ok(listener) => Some(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            Err(reason) => return Err(Error::Address { address, reason }),
        };
        Ok(Self {
            address,
            token,
            listener,
            dashboard: false,
            details: None,
        })
    }

    /// With the dashboard at `/`, or without it.
    #[must_use]
    pub fn with_dashboard(self, dashboard: bool) -> Self {
        Self { dashboard, ..self }
    }

    /// With keys and connections on the dashboard. `ask` is asked in the thread that serves, and may block.
    #[must_use]
    pub fn with_details(
        self,
        ask: impl Fn(Detail) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            details: Some(Details::new(ask)),
            ..self
        }
    }

    /// For whom has nobody to wait for.
    ///
    /// # Errors
    /// [`Error::Taken`].
    pub const fn must_be_bound(&self) -> Result<(), Error> {
        match self.listener {
            Some(_) => Ok(()),
            None => Err(Error::Taken(self.address)),
        }
    }

    /// The address, with the port that the kernel chose if 0 was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let bound = self.listener.as_ref().map(TcpListener::local_addr);
        bound.and_then(Result::ok).unwrap_or(self.address)
    }

    /// Serves from a thread of its own, until the process ends. `status` is asked there and may block.
    ///
    /// # Errors
    /// If the kernel gives no thread, or no epoll.
    pub fn serve<W: Watched>(
        mut self,
        status: impl Fn(Asker) -> Result<W, String> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // One asks for the status at a time.
            .max_blocking_threads(1)
            .build()?;
        let asked = Arc::new(Asked {
            token: self.token.clone(),
            status: Box::new(status),
            last: Arc::new(Mutex::new(None)),
            details: self.details.take().filter(|_| self.dashboard),
            dashboard: self.dashboard.then(Dashboard::begin),
        });
        std::thread::Builder::new()
            .name("erb-watch".to_owned())
            .spawn(move || {
                for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
                    if let Err(error) = caps::clear(None, set) {
                        tracing::warn!(
                            "the thread that serves metrics keeps its capabilities: {error}"
                        );
                    }
                }
                give_way();
                runtime.block_on(accept(self, asked));
            })?;
        Ok(())
    }

    /// Its socket, as soon as it is to be had.
    async fn listener(&mut self) -> tokio::net::TcpListener {
        let mut tries = 0;
        loop {
            let taken = self
                .listener
                .take()
                .map_or_else(|| TcpListener::bind(self.address), Ok);
            let taken = taken.and_then(|listener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            });
            match taken {
                Ok(listener) => return listener,
                Err(error) if tries == TAKE_TRIES => {
                    tracing::warn!(
                        "metrics are not served: {} cannot be listened on: {error}",
                        self.address
                    );
                }
                Err(_) => {}
            }
            tries += 1;
            tokio::time::sleep(TAKE_AGAIN).await;
        }
    }
}

/// A status with the time at which it was asked for.
type Told<W> = (Instant, Result<Arc<W>, String>);

/// What the dashboard has besides.
struct Dashboard {
    began: Instant,
    /// Names this process's history, so that a page sees when it has begun anew.
    run: String,
    history: StdMutex<History>,
}

impl Dashboard {
    fn begin() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            began: Instant::now(),
            run: format!(
                "{}-{}",
                std::process::id(),
                now.unwrap_or_default().as_nanos()
            ),
            history: StdMutex::default(),
        }
    }

    /// Since it began. 0 is before the first sample.
    fn at_ms(&self) -> u64 {
        let ms = self.began.elapsed().as_millis();
        u64::try_from(ms).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn history(&self) -> std::sync::MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What requests share.
struct Asked<W> {
    token: Option<Vec<u8>>,
    status: Box<dyn Fn(Asker) -> Result<W, String> + Send + Sync>,
    last: Arc<Mutex<Option<Told<W>>>>,
    dashboard: Option<Dashboard>,
    details: Option<Details>,
}

impl<W: Watched> Asked<W> {
    /// The status, not older than [`FRESH`].
    async fn status(self: &Arc<Self>) -> Result<Arc<W>, String> {
        // Whoever comes meanwhile waits here, and takes the same.
        let mut last = Arc::clone(&self.last).lock_owned().await;
        let fresh = last.as_ref().filter(|(when, _)| when.elapsed() < FRESH);
        if let Some((_, told)) = fresh {
            return told.clone();
        }
        let when = Instant::now();
        let asked = Arc::clone(self);
        // A task of its own: whoever asked may lose his place meanwhile, and the next one must not ask again.
        let asking = tokio::spawn(async move {
            let told = asked.ask(Asker::Reader).await;
            *last = Some((when, told.clone()));
            told
        });
        asking.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn ask(self: Arc<Self>, asker: Asker) -> Result<Arc<W>, String> {
        let told = tokio::task::spawn_blocking(move || (self.status)(asker)).await;
        told.unwrap_or_else(|error| Err(error.to_string()))
            .map(Arc::new)
    }

    /// Keeps the last hour, for ever.
    async fn remember(self: Arc<Self>) {
        let Some(dashboard) = &self.dashboard else {
            return;
        };
        let mut times = tokio::time::interval(EVERY);
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            // A daemon that does not answer leaves a gap.
            if let Ok(status) = Arc::clone(&self).ask(Asker::History).await {
                dashboard::push(&mut dashboard.history(), dashboard.at_ms(), &*status);
            }
        }
    }

    /// Whether this request may be answered; else what is said instead.
    fn admits(&self, request: &Request<Incoming>) -> Result<(), Answer> {
        let header = |name| {
            request
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if let Some(token) = &self.token {
            let given = header(AUTHORIZATION).and_then(|value| value.split_once(' '));
            let same = given.is_some_and(|(scheme, given)| {
                scheme.eq_ignore_ascii_case("bearer") && given.as_bytes().ct_eq(token).into()
            });
            return if same {
                Ok(())
            } else {
                Err(Answer::no_token())
            };
        }
        if header(HOST).is_some_and(is_here) {
            return Ok(());
        }
        let why = "without a token only requests to an address or to localhost are answered\n";
        Err(Answer::new(StatusCode::MISDIRECTED_REQUEST, why))
    }

    async fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Answer {
        // RFC 9112, 3.2: 400 to a request of HTTP/1.1 without Host, and to any with two.
        let hosts = request.headers().get_all(HOST).iter().count();
        if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
            return Answer::new(StatusCode::BAD_REQUEST, "one Host is needed\n");
        }
        let path = request.uri().path();
        let file = self.dashboard.as_ref().and(dashboard::file_at::<W>(path));
        if file.is_none() || self.token.is_none() {
            if let Err(refused) = self.admits(request) {
                return refused;
            }
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Answer::only_reading();
        }
        match (path, file, &self.dashboard) {
            (_, Some(file), _) => Answer::file(file),
            ("/metrics", ..) => self.metrics(request).await,
            ("/", ..) => Answer::new(StatusCode::OK, "ERB. Metrics for Prometheus: /metrics\n"),
            ("/declared.json", _, Some(_)) => {
                Answer::json(dashboard::declared::<W>(self.details.is_some()))
            }
            ("/now.json", _, Some(of)) => match self.status().await {
                Ok(status) => Answer::json(dashboard::now(&*status, &of.run, of.at_ms())),
                Err(why) => Answer::new(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
            },
            ("/hour.json", _, Some(of)) => {
                let query = request.uri().query().unwrap_or_default();
                let since = query.strip_prefix("since=").and_then(|ms| ms.parse().ok());
                let json = of.history().json(&of.run, since.unwrap_or(0));
                Answer::json(json)
            }
            _ => self.detail(request).await,
        }
    }

    async fn detail(&self, request: &Request<Incoming>) -> Answer {
        let path = request.uri().path();
        if let (Some(details), Some(detail)) = (&self.details, Detail::at(path)) {
            return match details.ask(detail).await {
                Ok(found) => {
                    let query = request.uri().query().unwrap_or_default();
                    Answer::json(details::json(detail, &found, query))
                }
                Err(why) => Answer::new(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
            };
        }
        let there = match self.dashboard {
            Some(_) => "there are /metrics and, for browsers, /\n",
            None => "there is /metrics\n",
        };
        Answer::new(StatusCode::NOT_FOUND, there)
    }

    async fn metrics(self: &Arc<Self>, request: &Request<Incoming>) -> Answer {
        match self.status().await {
            Ok(status) => {
                let accept = request.headers().get(ACCEPT);
                let accept = accept.and_then(|value| value.to_str().ok());
                let format = Format::accepted(accept.unwrap_or_default());
                Answer::of_type(format.content_type(), text(&*status, format))
            }
            Err(why) => Answer::new(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
        }
    }
}

/// Whether a request's Host is an address or localhost, with a port or without.
fn is_here(host: &str) -> bool {
    host.parse::<SocketAddr>().is_ok()
        || host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
            .is_ok()
        || host
            .split(':')
            .next()
            .is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

/// Whoever asks again and again takes processor time from nobody who works.
fn give_way() {
    // SAFETY: no memory is involved; 0 is the calling thread (setpriority(2), "C library/kernel differences").
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    if done != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!("the thread that serves metrics keeps its priority: {error}");
    }
}

async fn accept<W: Watched>(mut endpoint: Endpoint, asked: Arc<Asked<W>>) {
    let listener = endpoint.listener().await;
    tokio::spawn(Arc::clone(&asked).remember());
    let mut open: VecDeque<tokio::task::AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS_MAX {
            if let Some(oldest) = open.pop_front() {
                oldest.abort();
            }
        }
        let asked = Arc::clone(&asked);
        let connection = tokio::spawn(async move {
            // Whatever ends a connection ends that alone.
            let _ = tokio::time::timeout(LIFE_MAX, connection(stream, asked)).await;
        });
        open.push_back(connection.abort_handle());
    }
}

async fn connection<W: Watched>(
    stream: tokio::net::TcpStream,
    asked: Arc<Asked<W>>,
) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let asked = Arc::clone(&asked);
        async move { Ok::<_, Infallible>(asked.answer(&request).await.into_response()) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_host_is_here() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9279",
            "[::1]:9279",
            "[::1]",
            "localhost:1",
            "LOCALHOST",
        ] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9279",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }

    #[test]
    fn beyond_loopback_a_token_of_some_length_is_needed() {
        let bind = |address: &str, token: Option<&str>| {
            Endpoint::bind(
                address.parse().unwrap(),
                token.map(|token| token.as_bytes().to_vec()),
            )
        };
        assert!(matches!(
            bind("0.0.0.0:0", None),
            Err(Error::TokenNeeded(_))
        ));
        assert!(matches!(
            bind("[::ffff:10.0.0.1]:0", None),
            Err(Error::TokenNeeded(_))
        ));
        assert!(matches!(
            bind("127.0.0.1:0", Some("short")),
            Err(Error::TokenShort(5))
        ));
        for odd in [
            "a token with some blanks",
            "\u{feff}0123456789abcdef",
            "0123456789abcdef\0",
        ] {
            let found = bind("127.0.0.1:0", Some(odd));
            assert!(matches!(found, Err(Error::TokenOdd)), "{odd:?}");
        }
        assert!(bind("127.0.0.1:0", None).unwrap().must_be_bound().is_ok());
        assert!(bind("[::ffff:127.0.0.1]:0", None).is_ok());
    }
}
