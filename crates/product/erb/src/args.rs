// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line as typed. What may be used together is checked by the code that uses it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use erb_daemon::CredentialSource;

use crate::config::ConfigCommand;
use crate::detach::DetachArgs;
use crate::journal_args::{JournalCommand, KeptArgs};
use crate::kv_args::KvCommand;
use crate::node_args::NodeCommand;
use crate::times::{parse_deadline, parse_interval, parse_patience};
use crate::watch_args::{BugReportArgs, ManArgs, StatusArgs, TopArgs, WatchedArgs};

/// ERB answers Redis reads at the network card, over ordinary TCP, for an unmodified Redis.
#[derive(Debug, Parser)]
#[command(name = "erb", version, after_help = after_help())]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn after_help() -> String {
    format!("{}\n\n{}", crate::tools::HELP, crate::exit::HELP)
}

/// Commands of `erb`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Accelerate the Redis of this network namespace; returns when it is at work.
    ///
    /// Changes that no packet through the boosted devices shows (clients on other devices, `lo`
    /// among them, or on a unix socket; scripts run there; Redis's own expiry and eviction) reach the
    /// cache by Redis's invalidations. Should those stop, cached values are answered for 100 ms
    /// (the lease) and not longer.
    Boost(BoostArgs),
    /// Look at everything that hinders or slows a boost, and say what to do; nothing is changed.
    ///
    /// Kernel, privilege, devices and Redis: what `erb boost` checks, all of it at once, and what
    /// makes it slower than it need be. Exit code 0 without errors, else that of `erb boost`.
    ///
    /// With --file: whether that file would be sent without a copy, and what is in the way.
    Doctor(DoctorArgs),
    /// Serve a folder's files over HTTP/1.1, from persistent memory and page cache without a copy.
    ///
    /// GET, HEAD, ranges, entity tags. A body that ends is whole and of one version of its file, else
    /// the connection is reset. No TLS, no listings, no names that begin with a dot: a web server
    /// stands in front where these are wanted. Tells at its end how each byte was sent.
    Serve(ServeArgs),
    /// A storage node: keys with all their versions, in a file or block device, over NVMe/TCP.
    Node {
        /// What to do.
        #[command(subcommand)]
        command: NodeCommand,
    },
    /// Keys and values of a storage node, and what they were at any moment.
    Kv {
        /// What to do.
        #[command(subcommand)]
        command: KvCommand,
    },
    /// Show what is attached where, who is answered and why others are not.
    Status(StatusArgs),
    /// Watch rates, hits, connections and reasons live in the terminal.
    ///
    /// Keys: q quits, space pauses, s sorts by rate, count or name, / filters, tab shows connections,
    /// enter explains what is under the cursor, + and - change the pace. NO_COLOR is heeded.
    Top(TopArgs),
    /// Show live what becomes of packets: which program met each, its verdict, and every reason.
    ///
    /// One line per packet and program: time (UTC), processor, stage, connection, TCP flags, numbers
    /// and payload, the first command with its key, the verdict, and the counters that moved for it
    /// (`erb status` explains them, --explain does so here). Numbers are those with which the packet
    /// came; those with which it went on follow the verdict if they are others. Runs until Ctrl-C;
    /// costs nothing while nobody traces: only then programs that tell stand in for ERB's own.
    ///
    /// Not shown: ICMP, later fragments, what XDP sends (its length is told), packets with which ERB
    /// has nothing to do, and the daemon's own connection unless --client names it.
    Trace(TraceArgs),
    /// Stop answering and take everything away.
    ///
    /// Connections that the fast path has answered need translation until they close. Without
    /// --force the daemon stays for them and leaves with the last one. Without a daemon: detach again.
    Detach(DetachArgs),
    /// Print what helps to understand a fault, as JSON: versions, machine, status, findings, log.
    ///
    /// No keys, values or passwords are in it, and addresses only if asked for. Read it before it is sent.
    Report(BugReportArgs),
    /// What a boost with --mode write-back has kept on a disk and could not bring to Redis.
    Journal {
        /// What to do.
        #[command(subcommand)]
        command: JournalCommand,
    },
    /// Files with options of `erb boost`.
    Config {
        /// What to do.
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print what a shell needs to complete erb's words: source <(erb completions bash).
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command.
    Man(ManArgs),
    /// A laboratory in network namespaces (`erb lab --help`).
    #[command(hide = true, disable_help_flag = true)]
    Lab(ToolArgs),
    /// Measure what a request costs (`erb bench --help`).
    #[command(hide = true, disable_help_flag = true)]
    Bench(ToolArgs),
    /// Check that a Redis address shows what Redis alone could have shown (`erb check --help`).
    #[command(hide = true, disable_help_flag = true)]
    Check(ToolArgs),
    /// Show Redis alone beside Redis boosted (`erb demo --help`).
    #[command(hide = true, disable_help_flag = true)]
    Demo(ToolArgs),
    /// Put keys into the cache; prints how many are in it and how many are not, as JSON.
    #[command(hide = true)]
    Fill(FillArgs),
    /// Turn filling by misses on or off; off also means that misses are not recorded.
    #[command(hide = true)]
    Fills(FillsArgs),
    /// Keep a level of leaving out what does not pay; `auto`: as the daemon decides.
    Aside(AsideArgs),
    /// Say how much of a connection was answered without Redis: CLIENT SERVER in a line, JSON in a line.
    #[command(hide = true)]
    Consumed(Which),
    /// What a daemon starts beside itself, to be ended if it stands still.
    #[command(hide = true, name = erb_daemon::guard::COMMAND)]
    Guard,
    /// What `erb serve` starts beside itself, to hold what it sends should it be killed.
    #[command(hide = true, name = crate::serve::GUARD_COMMAND)]
    ServeGuard,
    /// What a trace starts beside itself, to put ERB's own programs back should it be killed.
    #[command(hide = true, name = erb_daemon::trace::guard::COMMAND)]
    TraceGuard {
        /// Run directory of the boost.
        run_dir: PathBuf,
    },
}

/// What is meant for the program `erb-lab`.
#[derive(Clone, Debug, Args)]
pub struct ToolArgs {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Which boost is meant.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Run directory of the boost [default: of the only one of this network namespace, or of the only
    /// one there is].
    #[arg(long, value_name = "DIR", value_parser = absolute_text())]
    pub run_dir: Option<PathBuf>,
}

/// Arguments of `erb fill`.
#[derive(Clone, Debug, Args)]
pub struct FillArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// The keys hold hashes; without it, strings.
    #[arg(long)]
    pub hashes: bool,
    /// The keys [default: those on standard input, one a line].
    #[arg(value_name = "KEY")]
    pub keys: Vec<String>,
}

/// Arguments of `erb aside`.
#[derive(Clone, Debug, Args)]
pub struct AsideArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// The level.
    #[arg(value_enum)]
    pub level: AsideLevel,
    /// Of which changes Redis tells [default: as the daemon decides].
    #[arg(long, value_enum)]
    pub reports: Option<AsideReports>,
}

/// Of which changes Redis tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AsideReports {
    /// Of all.
    All,
    /// Of keys that the daemon has read.
    OfRead,
}

/// A level of leaving out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AsideLevel {
    /// As the daemon decides.
    Auto,
    /// Nothing is left out.
    #[value(name = "0")]
    Nothing,
    /// Look-ups but of a sample.
    #[value(name = "1")]
    Looks,
    /// Fills too.
    #[value(name = "2")]
    Fills,
    /// The cache is closed: requests are not read, and nothing is answered until another word.
    #[value(name = "3")]
    Closed,
}

/// Arguments of `erb fills`.
#[derive(Clone, Debug, Args)]
pub struct FillsArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// On or off.
    #[arg(value_enum)]
    pub switch: Switch,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// How ERB works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Reads are answered from the cache, every write goes to Redis.
    Read,
    /// SETs are answered too, and are in Redis some milliseconds later. NOT FOR DATA THAT MATTERS YET: what
    /// was answered and is not in Redis is lost with the machine's power, or left to a person (--journal).
    WriteBack,
}

/// Where packets are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tier {
    /// In XDP where the driver has it natively and its answers arrive at once, else in TC.
    Auto,
    /// In XDP wherever the driver has it natively, else in TC.
    Xdp,
    /// In TC alone, whatever the driver has: slower, and free of the driver's XDP.
    Tc,
}

/// As whom the daemon's own connection authenticates at Redis.
#[derive(Clone, Debug, Args)]
pub struct LoginArgs {
    /// User of Redis as whom the daemon's own connection authenticates [default: Redis's default
    /// user].
    #[arg(long, value_name = "NAME")]
    pub redis_user: Option<String>,
    /// File whose first line is that user's password; readable by its owner alone. Read again at
    /// each connection, so a password may be changed [default: the environment variable
    /// ERB_REDIS_PASSWORD].
    #[arg(long, value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,
}

impl LoginArgs {
    /// Where user and password come from.
    pub fn source(&self) -> erb_daemon::Result<CredentialSource> {
        CredentialSource::new(
            self.redis_user.as_deref(),
            self.redis_password_file.as_deref(),
        )
    }
}

/// Arguments of `erb boost`.
#[derive(Clone, Debug, Args)]
pub struct BoostArgs {
    /// TOML file with options of this command under their long names; what is typed wins. See
    /// `erb config`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Device by which clients reach Redis, `lo` for those on this machine; may be given several
    /// times.
    #[arg(long, required = true, value_name = "IF")]
    pub dev: Vec<String>,
    /// Redis's address for the daemon's own connection: HOST:PORT or unix:PATH.
    #[arg(long, value_name = "ADDR")]
    pub redis: String,
    /// As whom the daemon's own connection authenticates.
    #[command(flatten)]
    pub login: LoginArgs,
    /// Port on which Redis serves its clients [default: that of --redis, else Redis's own].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Memory of the cache, with K, M or G.
    #[arg(long, default_value = "256M", value_name = "SIZE")]
    pub cache_size: String,
    /// Connections for which there is room, at 5 KiB of memory each (16384: 81 MiB, 1048576: 5 GiB).
    /// One client address gets half of them at most. What finds no room is answered by Redis alone,
    /// and what it writes shows in answers to others up to 100 ms late [default: twice Redis's
    /// maxclients, at least 16384, at most a 64th of the memory].
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(erb_datapath::CONNECTIONS))]
    pub connections: Option<u32>,
    /// A client whose command waits for so long until what was answered before it is in Redis is reset;
    /// 100ms and more. In mode read nothing waits.
    #[arg(long, default_value = "5s", value_parser = parse_interval, value_name = "TIME")]
    pub hold_max: Duration,
    /// Close the cache when it has not paid for so long, as `erb aside 3` does, and look again after as long, later
    /// each hour; 10s to 24h [default: the cache is closed by `erb aside 3` alone].
    #[arg(long, value_parser = parse_patience, value_name = "TIME")]
    pub close_after: Option<Duration>,
    /// Mode of work.
    #[arg(long, value_enum, default_value_t = Mode::Read)]
    pub mode: Mode,
    /// What is kept of what waits for Redis.
    #[command(flatten)]
    pub kept: KeptArgs,
    /// With --mode write-back: answer SETs although there are clients that pass no boosted device. What they write
    /// may be overwritten by SETs that were answered before, for as long as these wait for Redis.
    #[arg(long)]
    pub allow_unseen: bool,
    /// With --mode write-back: the same of modules that may write by themselves.
    #[arg(long)]
    pub allow_modules: bool,
    /// Where packets are answered. A boost that is taken over keeps what it has.
    #[arg(long, value_enum, default_value_t = Tier::Auto)]
    pub tier: Tier,
    /// Where lock, control socket, log and pins are kept [default: /run/erb/IF-NAMESPACE].
    #[arg(long, value_name = "DIR", value_parser = absolute_text())]
    pub run_dir: Option<PathBuf>,
    /// Log file of the daemon [default: `log` in the run directory; standard error with
    /// --foreground].
    #[arg(long, value_name = "FILE", value_parser = absolute())]
    pub log: Option<PathBuf>,
    /// Where it is watched.
    #[command(flatten)]
    pub watched: WatchedArgs,
    /// On the dashboard also keys by heat, and connections with their addresses. Whoever may read the
    /// dashboard then sees both.
    #[arg(long, requires = "dashboard")]
    pub dashboard_details: bool,
    /// Sample no packets: no times of requests, and no keys by heat. One packet in 61 is sampled, some 2 ns a request.
    #[arg(long)]
    pub no_timing: bool,
    /// Folder with other objects to load than the built-in ones; they must be built from the same
    /// shared structures. For tests of replacements.
    #[arg(long, hide = true, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Take the place of a daemon that is at work, of the same build too. No connection notices.
    #[arg(long)]
    pub take_over: bool,
    /// Boost although nothing will be answered, as with a Redis Cluster node: memory is taken, and every request is
    /// looked at and passed on.
    #[arg(long)]
    pub anyway: bool,
    /// Stay in the foreground.
    #[arg(long)]
    pub foreground: bool,
    /// Set by `erb boost` for the daemon it starts: say on standard output, as JSON, how the
    /// start went, then leave the terminal.
    #[arg(long, hide = true, requires = "foreground")]
    pub announce: bool,
    /// Set by `erb boost` for a process between: start the daemon and end.
    #[arg(long, hide = true, requires = "announce")]
    pub orphan: bool,
}

/// Arguments of `erb doctor`.
#[derive(Clone, Debug, Args)]
pub struct DoctorArgs {
    /// Look instead at whether this file would be sent without a copy, by `erb serve` or dax-send, and
    /// what is in the way; with --dev also by that device. Redis is not asked.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["redis_user", "redis_password_file", "port", "journal_dir"])]
    pub file: Option<PathBuf>,
    /// Device by which clients reach Redis; may be given several times [default: all but lo].
    #[arg(long, value_name = "IF")]
    pub dev: Vec<String>,
    /// Redis's address, as for `erb boost`.
    #[arg(long, default_value = "127.0.0.1:6379", value_name = "ADDR")]
    pub redis: String,
    /// As for `erb boost`.
    #[command(flatten)]
    pub login: LoginArgs,
    /// Port on which Redis serves its clients, as for `erb boost`.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Folder of a journal (`erb boost --journal-dir`) in which to look for SETs that a loss of power has left; those
    /// of boosts at work and below /var/lib/erb/journal are looked at anyway.
    #[arg(long, value_name = "DIR", value_parser = absolute_text())]
    pub journal_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `erb serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// The folder. Nothing outside of it is served, whatever links in it say.
    #[arg(value_name = "DIR")]
    pub root: PathBuf,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Threads [default: one for each processor].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Connections at a time, in all; who comes beyond them is closed at once.
    #[arg(long, default_value_t = 16_384, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,
    /// File that stands for a folder.
    #[arg(long, default_value = "index.html", value_name = "NAME")]
    pub index: String,
    /// Memory that may be pinned for clients that have not acknowledged it, in MiB. Beyond it, bytes are copied.
    #[arg(long, default_value_t = 64, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub pinned: u32,
    /// A client that acknowledges nothing for so long is reset; at most 30s, below the kernel's
    /// patience with file leases.
    #[arg(long, default_value = "20s", value_parser = parse_deadline, value_name = "TIME")]
    pub deadline: Duration,
    /// How files that are not on persistent memory are sent.
    #[arg(long, value_enum, default_value_t = PageCache::Sendfile)]
    pub page_cache: PageCache,
    /// A second process that holds what is sent zero-copy, should this one be killed.
    #[arg(long, value_enum, default_value_t = GuardUse::Auto, value_name = "WHEN")]
    pub guard: GuardUse,
    /// Tell so often how bytes were sent, not only at the end.
    #[arg(long, value_parser = parse_interval, value_name = "TIME")]
    pub every: Option<Duration>,
    /// Where it is watched.
    #[command(flatten)]
    pub watched: WatchedArgs,
    /// Print JSON, one object a line.
    #[arg(long)]
    pub json: bool,
}

/// How files of the page cache are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageCache {
    /// By sendfile: nothing is copied and nothing pinned.
    Sendfile,
    /// As if they were on persistent memory: less processor time for large files, and memory is pinned.
    ZeroCopy,
}

/// When there is a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GuardUse {
    /// Before Linux 6.15, where another file's bytes could be sent without it.
    Auto,
    /// In any case: whoever deletes a file does not wait for clients of a server that was killed.
    Always,
    /// A server that is killed must not have its files cut or deleted until its sockets are gone.
    Never,
}

/// Arguments of `erb trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// Which boost.
    #[command(flatten)]
    pub which: Which,
    /// Only connections of this client: IP or IP:PORT, [IPV6]:PORT.
    #[arg(long, value_name = "ADDR")]
    pub client: Option<String>,
    /// Only packets to Redis that have this key (or other argument); in double quotes with redis-cli's
    /// escapes, like '"a\xff"'. What is cut by a packet's end, or written inline, is not found.
    #[arg(long, value_name = "KEY")]
    pub key: Option<OsString>,
    /// End after so many packets.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// End after so many seconds.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Write each reason's sentence below the packet.
    #[arg(long, conflicts_with = "json")]
    pub explain: bool,
    /// Print one JSON object per packet and line.
    #[arg(long)]
    pub json: bool,
}

/// Paths as seen from where the command was given: the daemon works from another folder.
pub fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute)
}

/// The same of what is written down, as JSON, or named to the kernel as text.
pub fn absolute_text() -> impl TypedValueParser<Value = PathBuf> {
    absolute().try_map(|path| match path.to_str() {
        Some(_) => Ok(path),
        None => Err(format!(
            "{} is no UTF-8: take a folder with a path that is",
            path.display()
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn tools_are_listed_with_their_sentence_and_take_any_words() {
        for tool in ["lab", "bench", "check", "demo"] {
            let cli = Cli::command();
            let command = cli.find_subcommand(tool).expect(tool);
            let about = command.get_about().expect(tool).to_string();
            let sentence = about.split(" (`").next().unwrap_or_default();
            let line = format!("\n  {tool:<8}{sentence}");
            assert!(crate::tools::HELP.contains(&line), "{line}");
            for words in [&["--help"][..], &["exec", "client", "--", "--x"], &[]] {
                let line = [&["erb", tool], words].concat();
                assert!(Cli::try_parse_from(&line).is_ok(), "{line:?}");
            }
        }
    }

    #[test]
    fn a_folder_that_is_written_down_is_one_that_can_be() {
        use std::os::unix::ffi::OsStringExt;
        let odd = || OsString::from_vec(b"/run/erb\xff".to_vec());
        for words in [
            &["boost", "--dev", "a", "--redis", "b", "--run-dir"][..],
            &["boost", "--dev", "a", "--redis", "b", "--journal-dir"],
            &["status", "--run-dir"],
            &["detach", "--run-dir"],
            &["trace", "--run-dir"],
            &["top", "--run-dir"],
        ] {
            let line = || ["erb"].iter().chain(words).map(OsString::from);
            let refused = Cli::try_parse_from(line().chain([odd()])).expect_err("a refusal");
            assert_eq!(
                refused.exit_code(),
                i32::from(crate::exit::USAGE),
                "{words:?}"
            );
            assert!(refused.to_string().contains("UTF-8"), "{refused}");
            assert!(
                Cli::try_parse_from(line().chain(["/run/erb".into()])).is_ok(),
                "{words:?}"
            );
        }
    }

    #[test]
    fn paths_are_those_of_the_folder_where_the_command_was_given() {
        let line = "erb boost --dev a --redis b --run-dir run --log /var/log/erb";
        let Command::Boost(args) = Cli::parse_from(line.split(' ')).command else {
            panic!("{line}");
        };
        let here = std::env::current_dir().expect("a folder");
        assert_eq!(args.run_dir, Some(here.join("run")));
        assert_eq!(args.log, Some("/var/log/erb".into()));
    }
}
