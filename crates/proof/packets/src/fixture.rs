// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench that all rows share: a server namespace with the real programs loaded, a client's end
//! that is a raw socket without a TCP of its own, and one thread that owns it all.
//!
//! Nothing has a name outside this process for longer than the set-up takes: namespaces, mounts
//! and pins end with the thread's process, also when a test panics.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use erb_abi::{self as abi, ControlPlane as _, Logs};
pub use erb_datapath::Programs as Objects;
use erb_datapath::{
    CacheSize, Datapath, FillEntry, Links, LoadOptions, Sizes, TableSize, TraceFilter, Tracer,
    ValueKind,
};
use erb_lab::offload::{self, Offload};
use erb_lab::packet::{Batch, PacketSocket};
use erb_lab::topology::{
    CLIENT_IPV4, CLIENT_IPV6, CLIENT_MAC, SERVER_IPV4, SERVER_IPV6, SERVER_MAC,
};
use erb_lab::veth::{self, VethEnd};
use erb_lab::{netns, xdp_pass};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Program};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::frame::{Family, PORT};
use crate::row;

/// Places in the table of connections: soon full.
pub const CONNECTIONS: u32 = 256;

/// Small, so that sets are shared often and emptied quickly: 4 MiB are 512 sets.
const CACHE_BYTES: u64 = 4 << 20;
/// The hash seed; fixed, so that a failure repeats.
const HASH_SEED: u64 = 0x0123_4567_89ab_cdef;
/// Halvings after which a miss count is 0: no row is to report another's miss.
const MISS_COUNT_BITS: usize = 3;
/// No single test takes longer, what is in front of it on the bench included: all together take seconds.
const RUN_TIME_MAX: Duration = Duration::from_secs(1200);

/// The programs under test.
pub struct Programs {
    /// `erb_xdp`.
    pub xdp: OwnedFd,
    /// `erb_tc_ingress`.
    pub ingress: OwnedFd,
    /// `erb_tc_egress`.
    pub egress: OwnedFd,
}

/// Everything that rows work on; used by its own thread only.
pub struct Bench {
    /// The loaded data path.
    pub dp: Datapath,
    /// `erb_conns`.
    pub conns: MapHandle,
    /// `erb_sets`.
    pub sets: MapHandle,
    busy: MapHandle,
    root: PathBuf,
    /// The programs under test.
    pub programs: Programs,
    /// The server's device.
    pub ifindex: u32,
    /// The client's end of the wire.
    pub wire: PacketSocket,
    /// Frames received last.
    pub batch: Batch,
    /// Instructions verified, by program.
    pub verified: BTreeMap<String, u32>,
    listeners: [TcpListener; 2],
    next_port: u16,
    filled: Vec<Vec<u8>>,
}

/// The folder whose programs the bench loads; those of Redis's handler if nobody says another.
static OBJECTS: OnceLock<PathBuf> = OnceLock::new();

/// The bench of this process is to run the programs of another handler: those in `folder`. To be said
/// before the first [`with`].
pub fn load_from(folder: &Path) {
    OBJECTS.get_or_init(|| folder.to_owned());
}

type Job = Box<dyn FnOnce(&mut Bench) + Send>;

/// Runs `work` on the bench's thread, one at a time, and gives back its result or its panic.
///
/// # Panics
/// If the bench cannot be set up (root is needed), or `work` panics.
pub fn with<T: Send + 'static>(work: impl FnOnce(&mut Bench) -> T + Send + 'static) -> T {
    static BENCH: OnceLock<Result<Sender<Job>, String>> = OnceLock::new();
    let jobs = match BENCH.get_or_init(start) {
        Ok(jobs) => jobs,
        Err(why) => panic!("the bench cannot be set up: {why}"),
    };
    let (done, result) = channel();
    let job = move |bench: &mut Bench| {
        let outcome: Result<T, Box<dyn Any + Send>> =
            catch_unwind(AssertUnwindSafe(|| work(bench)));
        // The test waits for it; if it is gone, it is not needed.
        let _ = done.send(outcome);
    };
    jobs.send(Box::new(job))
        .expect("the bench's thread lives as long as the process");
    match result.recv_timeout(RUN_TIME_MAX) {
        Ok(Ok(value)) => value,
        // What its thread printed was captured for the test that started it.
        Ok(Err(panic)) => panic!("{}", row::panic_text(&*panic)),
        Err(RecvTimeoutError::Timeout) => {
            erb_steady::out_of_patience(format_args!("no result within {RUN_TIME_MAX:?}"))
        }
        Err(error) => panic!("no result: {error}"),
    }
}

fn start() -> Result<Sender<Job>, String> {
    let (jobs, queue) = channel::<Job>();
    let (ready, state) = channel();
    thread::spawn(move || match set_up() {
        Ok(mut bench) => {
            // The starter waits for exactly this.
            let _ = ready.send(Ok(()));
            queue.into_iter().for_each(|job| job(&mut bench));
        }
        Err(error) => {
            let _ = ready.send(Err(format!("{error:#}")));
        }
    });
    state
        .recv()
        .unwrap_or_else(|_| Err("its thread panicked".to_owned()))
        .map(|()| jobs)
}

fn set_up() -> Result<Bench> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "these tests load BPF programs and make network namespaces: run them as root"
    );
    let server = format!("erb-packets-{}-server", std::process::id());
    let client = format!("erb-packets-{}-client", std::process::id());
    let made = netns::create(&server)
        .and_then(|()| netns::create(&client))
        .and_then(|()| set_up_in(&server, &client));
    // From here on the bench's thread and its sockets keep the namespaces alive.
    netns::remove(&server)?;
    netns::remove(&client)?;
    made
}

fn set_up_in(server: &str, client: &str) -> Result<Bench> {
    netns::sysctl(client, "ipv6/conf/all/disable_ipv6", "1")?;
    netns::sysctl(client, "ipv6/conf/default/disable_ipv6", "1")?;
    netns::enter_in_thread(server)?;
    make_wire(server, client)?;
    for off in [
        Offload::TxChecksum,
        Offload::Tso,
        Offload::Gso,
        Offload::Gro,
    ] {
        offload::set(server, "s0", off, false)?;
    }
    xdp_pass::attach(server, "s0")?;
    xdp_pass::attach(client, "c0")?;
    let ifindex = erb_datapath::Device::find("s0")?.ifindex;
    private_bpffs()?;
    let objects = OBJECTS.get().map(|folder| Objects::from_folder(folder));
    let objects = objects.unwrap_or_else(|| Ok(Objects::builtin()))?;
    let root = load("erb", &objects, PORT, ifindex)?;
    Links::new(&root).watch_egress()?;
    let program = |name: &str| Program::fd_from_pinned_path(root.join(format!("prog_{name}")));
    let bench = Bench {
        dp: Datapath::open(&root, ifindex)?,
        conns: MapHandle::from_pinned_path(root.join("erb_conns"))?,
        sets: MapHandle::from_pinned_path(root.join("erb_sets"))?,
        busy: MapHandle::from_pinned_path(root.join("erb_busy"))?,
        programs: Programs {
            xdp: program("erb_xdp")?,
            ingress: program("erb_tc_ingress")?,
            egress: program("erb_tc_egress")?,
        },
        ifindex,
        wire: netns::run_in(client, || PacketSocket::open("c0"))?,
        batch: Batch::new(),
        verified: verified_programs(&root)?,
        listeners: [
            TcpListener::bind((SERVER_IPV4, PORT))?,
            TcpListener::bind((SERVER_IPV6, PORT))?,
        ],
        next_port: 20_000,
        filled: Vec::new(),
        root,
    };
    for listener in &bench.listeners {
        let known = bench
            .dp
            .set_listener(cookie(listener)?, Some(abi::LISTENER_REDIS))?;
        ensure!(known, "no room for {listener:?}");
    }
    bench.open_for_service();
    Ok(bench)
}

fn verified_programs(root: &Path) -> Result<BTreeMap<String, u32>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if let Some(name) = name.strip_prefix("prog_") {
            let program = Program::fd_from_pinned_path(entry.path())?;
            found.insert(name.to_owned(), erb_datapath::verified(&program)?);
        }
    }
    // Those of a trace are pinned nowhere.
    if OBJECTS.get().is_none() {
        found.extend(Tracer::load(root, &TraceFilter::default())?.verified()?);
    }
    Ok(found)
}

/// Loads programs for a port into a bpffs folder of their own.
fn load(name: &str, objects: &Objects, port: u16, ifindex: u32) -> Result<PathBuf> {
    let root = Path::new(BPFFS).join(name);
    fs::create_dir(&root)?;
    let options = LoadOptions {
        sizes: Sizes {
            cache: CacheSize::from_bytes(CACHE_BYTES, u64::MAX)?,
            table: TableSize::of(CONNECTIONS, u64::MAX)?,
            log_rings: u32::try_from(libbpf_rs::num_possible_cpus()?)?,
        },
        sink: erb_datapath::JournalSink::default(),
        port,
        devices: vec![ifindex],
        hash: erb_abi::hash_secret::of_seed(HASH_SEED),
    };
    erb_datapath::load_programs(&root, &options, objects)?;
    Ok(root)
}

/// The programs of a second handler, on the bench's device for another port.
pub struct Neighbour {
    /// `erb_xdp`.
    pub xdp: OwnedFd,
    /// Its maps.
    pub dp: Datapath,
    root: PathBuf,
}

impl Neighbour {
    /// Loads them.
    ///
    /// # Panics
    /// If the kernel refuses.
    #[must_use]
    pub fn load(bench: &Bench, objects: &Objects, port: u16) -> Self {
        let load = || -> Result<Self> {
            let root = load("neighbour", objects, port, bench.ifindex)?;
            Ok(Self {
                xdp: Program::fd_from_pinned_path(root.join("prog_erb_xdp"))?,
                dp: Datapath::open(&root, bench.ifindex)?,
                root,
            })
        };
        load().expect("the neighbour's programs")
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        erb_datapath::remove_pins(&self.root);
        // What is left goes with the bench's mount.
        let _ = fs::remove_dir(&self.root);
    }
}

/// The cookie by which programs know a socket (`SO_COOKIE`); asking makes it.
///
/// # Errors
/// If the kernel does not tell it.
pub fn cookie(socket: &impl std::os::fd::AsRawFd) -> Result<u64> {
    let mut cookie = 0_u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>())?;
    // SAFETY: the kernel writes at most the eight bytes that len says.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            std::ptr::from_mut(&mut cookie).cast(),
            &raw mut len,
        )
    };
    ensure!(done == 0, "SO_COOKIE: {}", std::io::Error::last_os_error());
    Ok(cookie)
}

/// The pair c0 - s0; only the server's end has addresses, so that the client's namespace answers
/// nothing by itself.
fn make_wire(server: &str, client: &str) -> Result<()> {
    let here = VethEnd {
        namespace: server,
        device: "s0",
        mac: Some(SERVER_MAC),
    };
    let there = VethEnd {
        namespace: client,
        device: "c0",
        mac: Some(CLIENT_MAC),
    };
    veth::make(here, there, None)?;
    veth::configure(
        here,
        &[(SERVER_IPV4.into(), 24), (SERVER_IPV6.into(), 64)],
        &[CLIENT_IPV4.into(), CLIENT_IPV6.into()].map(|peer| (peer, CLIENT_MAC)),
    )?;
    veth::up(client, "c0")
}

const BPFFS: &str = "/sys/fs/bpf";

/// A bpffs that only this thread sees.
///
/// # Errors
/// It cannot be had without root.
pub fn private_bpffs() -> Result<&'static Path> {
    unshare(CloneFlags::CLONE_NEWNS).context("unshare(CLONE_NEWNS)")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)?;
    fs::create_dir_all(BPFFS)?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)
        .context("cannot mount a bpffs")?;
    Ok(Path::new(BPFFS))
}

impl Bench {
    /// The log of what is answered in the server's place.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn logs(&self) -> Logs {
        erb_datapath::open_logs(&self.root).expect("erb_log")
    }

    /// What a CPU says of the write that it is at: its word of `erb_busy`.
    ///
    /// # Panics
    /// If the map cannot be read.
    #[must_use]
    pub fn busy(&self, cpu: usize) -> u64 {
        let key = u32::try_from(cpu).expect("a CPU").to_ne_bytes();
        let line = self.busy.lookup(&key, MapFlags::ANY).expect("erb_busy");
        let word = line.as_deref().and_then(<[u8]>::first_chunk);
        u64::from_ne_bytes(*word.expect("a line of it"))
    }

    /// What the daemon does once it has handled all that Redis reports.
    ///
    /// # Panics
    /// If the program cannot be run.
    pub fn settle(&self) {
        let answered = self.dp.control().fence_answered();
        self.dp.settle(answered).expect("erb_settle");
    }

    /// Every second set is left out: the key's own, or the others.
    pub fn step_aside(&self, key: &[u8], of_it: bool) {
        let control = self.dp.control();
        let set = control.hash_secret().hash(key) as u8;
        control.set_look_at(if of_it { !set } else { set });
        control.set_look_mask(1);
    }

    /// Everything allowed, no expiry of the lease, no heartbeat.
    ///
    /// # Panics
    /// If the programs do not run.
    pub fn open_for_service(&self) {
        let control = self.dp.control();
        control.set_serving(1);
        control.set_stopping(0);
        control.set_admit(1);
        control.set_one_line(1);
        control.set_open(abi::DOOR_OPEN);
        control.set_fills(1);
        control.set_miss_fill_at(2);
        control.set_look_mask(0);
        control.set_lease_until_ns(u64::MAX);
        control.set_fast_off(0);
        control.set_absent(1);
        control.set_write_through(0); // a SET would outlive its row
        control.set_heartbeat_up_ns(0);
        control.set_gate_ack(control.gate_seen());
        (0..MISS_COUNT_BITS).for_each(|_| self.dp.fade_interests(0));
        control.set_client_conns_max(CONNECTIONS / abi::CLIENT_SHARE);
    }

    /// Runs `work` with all programs attached to the device, as `erb boost` attaches them.
    ///
    /// # Panics
    /// If they cannot be attached.
    pub fn live(&mut self, work: impl FnOnce(&mut Self)) {
        let attached = Attached::new(self).expect("attach");
        work(self);
        drop(attached);
    }

    /// The listening socket of a family.
    #[must_use]
    pub const fn listener(&self, family: Family) -> &TcpListener {
        match family {
            Family::V4 => &self.listeners[0],
            Family::V6 => &self.listeners[1],
        }
    }

    /// A client port that no row has used.
    pub const fn port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// Puts a key into the cache; `expiry_ms` by the wall clock, 0 = none.
    ///
    /// # Panics
    /// If it is refused.
    pub fn fill(&mut self, key: &[u8], value: &[u8], expiry_ms: u64) {
        self.fill_kind(key, ValueKind::String, value, expiry_ms);
    }

    /// Puts a value of any kind, as its slot holds it, into the cache.
    ///
    /// # Panics
    /// If the programs do not run or refuse it.
    pub fn fill_kind(&mut self, key: &[u8], kind: ValueKind, value: &[u8], expiry_ms: u64) {
        self.insert(key, kind, Some(value), expiry_ms);
    }

    /// Puts into the cache that there is no such key.
    ///
    /// # Panics
    /// If the programs do not run or refuse it.
    pub fn fill_absent(&mut self, key: &[u8]) {
        self.insert(key, ValueKind::String, None, 0);
    }

    fn insert(&mut self, key: &[u8], kind: ValueKind, value: Option<&[u8]>, expiry_ms: u64) {
        let token = self.dp.fill_begin(&[key]).expect("fill_begin")[0];
        assert_eq!(token.status, abi::FILL_OK, "fill_begin of {key:?}");
        let entry = FillEntry {
            key,
            db: 0,
            kind,
            value,
            expiry_ms,
            token,
        };
        let status = self.dp.fill_insert(&[entry]).expect("fill_insert")[0];
        assert_eq!(status, abi::FILL_OK, "fill_insert of {key:?}");
        self.filled.push(key.to_vec());
    }

    /// Takes out of the cache what [`Self::fill`] put there.
    ///
    /// # Panics
    /// If the program does not run.
    pub fn empty_cache(&mut self) {
        for key in std::mem::take(&mut self.filled) {
            self.dp.invalidate(&[&key]).expect("erb_invalidate");
        }
    }

    /// All counters.
    ///
    /// # Panics
    /// If the map cannot be read.
    #[must_use]
    pub fn stats(&self) -> Vec<u64> {
        self.dp.stats().expect("erb_stats")
    }
}

/// The ingress programs on the device; dropped, the device is as before.
struct Attached {
    ifindex: i32,
    before: OwnedFd,
    _tc: OwnedFd,
}

impl Attached {
    fn new(bench: &Bench) -> Result<Self> {
        let ifindex = i32::try_from(bench.ifindex)?;
        let mut id = 0;
        // SAFETY: id is a live integer for the kernel's answer.
        let asked = unsafe {
            libbpf_sys::bpf_xdp_query_id(
                ifindex,
                libbpf_sys::XDP_FLAGS_DRV_MODE as i32,
                &raw mut id,
            )
        };
        ensure!(asked == 0, "bpf_xdp_query_id: {asked}");
        // SAFETY: no pointers.
        let before = owned(unsafe { libbpf_sys::bpf_prog_get_fd_by_id(id) })?;
        // SAFETY: the descriptor is a loaded program's; options may be null.
        let tc = owned(unsafe {
            libbpf_sys::bpf_link_create(
                bench.programs.ingress.as_raw_fd(),
                ifindex,
                libbpf_sys::BPF_TCX_INGRESS,
                std::ptr::null(),
            )
        })?;
        put_xdp(ifindex, &bench.programs.xdp)?;
        Ok(Self {
            ifindex,
            before,
            _tc: tc,
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // If the device is gone there is nothing to put back.
        let _ = put_xdp(self.ifindex, &self.before);
    }
}

fn owned(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(-fd)).context("bpf");
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn put_xdp(ifindex: i32, program: &OwnedFd) -> Result<()> {
    // SAFETY: the descriptor is a loaded program's; options may be null.
    let done = unsafe {
        libbpf_sys::bpf_xdp_attach(
            ifindex,
            program.as_raw_fd(),
            libbpf_sys::XDP_FLAGS_DRV_MODE,
            std::ptr::null(),
        )
    };
    ensure!(done == 0, "bpf_xdp_attach: {done}");
    Ok(())
}

/// The addresses of both ends in the data path's form.
#[must_use]
pub fn conn_key(family: Family, client_port: u16) -> abi::conn_key {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    let (client, server): (IpAddr, IpAddr) = match family {
        Family::V4 => (CLIENT_IPV4.into(), SERVER_IPV4.into()),
        Family::V6 => (CLIENT_IPV6.into(), SERVER_IPV6.into()),
    };
    abi::conn_key {
        client_addr: bytes(client),
        server_addr: bytes(server),
        client_port_be: client_port.to_be(),
        server_port_be: PORT.to_be(),
        pad: 0,
    }
}

/// A key of `erb_conns` as the map wants it.
#[must_use]
pub fn key_bytes(key: &abi::conn_key) -> Vec<u8> {
    [
        &key.client_addr[..],
        &key.server_addr,
        &key.client_port_be.to_ne_bytes(),
        &key.server_port_be.to_ne_bytes(),
        &key.pad.to_ne_bytes(),
    ]
    .concat()
}
