// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The maps of one world and the programs that run on them.

use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::ffi::c_void;
use std::rc::Rc;

use erb_abi::{Buffers, Control, Program};

use crate::control::mapped;
use crate::exec::{self, Exec, Held, exec, violation};
use crate::homes::Home;
use crate::interpret::{Call, Interpreter};
use crate::io::Module;
use crate::kernel::{Kernel, Sock, tcp_state};
use crate::library::{Hook, Library, SkbCtx, SkbProgram, SyscallProgram, XdpCtx};
use crate::map::Map;
use crate::packet::Packet;
use crate::under_way::UnderWay;

/// Garbage is taken from anywhere in so many random bytes: several times the largest scratch.
const GARBAGE_BYTES: usize = 64 * 1024;
/// Buffers for payload beyond holes: so few that they run out.
pub const AHEAD_BUFFERS: usize = 4;

/// Sizes and habits of one world's data path.
#[derive(Clone, Debug)]
pub struct DatapathConfig {
    /// Cache sets, a power of two.
    pub sets: u32,
    /// Places in the table of connections.
    pub conns: u32,
    /// Those that one client address may have.
    pub client_conns: u32,
    /// CPUs.
    pub cpus: usize,
    /// Bytes of the ring of misses.
    pub ring_bytes: usize,
    /// Redis's port, host order.
    pub port: u16,
    /// Indexes of the boosted devices.
    pub devices: &'static [u32],
    /// From what the secret of the key hash follows.
    pub hash_seed: u64,
    /// Scratch maps are filled with garbage before one in so many programs; 0: never.
    pub garbage_one_in: u32,
    /// Seed of the garbage.
    pub seed: u64,
    /// `bpf_csum_diff` folds its result to 16 bits, as from Linux 6.13 on.
    pub csum_folded: bool,
}

impl Default for DatapathConfig {
    fn default() -> Self {
        Self {
            sets: 64,
            conns: 64,
            client_conns: 64,
            cpus: 2,
            ring_bytes: 1 << 14,
            port: 6379,
            devices: &[3],
            hash_seed: 0x5eed,
            garbage_one_in: 4,
            seed: 1,
            csum_folded: false,
        }
    }
}

/// What a socket that is gone shows to who still holds it: a connection closes, a request or a
/// TIME_WAIT never is anything else.
const fn gone(state: u8) -> u8 {
    match state {
        tcp_state::NEW_SYN_RECV | tcp_state::TIME_WAIT => state,
        _ => tcp_state::CLOSE,
    }
}

/// What the XDP program decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xdp {
    /// Gone.
    Drop,
    /// Up to TC ingress.
    Pass,
    /// Back out by the same device, not through the egress program.
    Tx,
}

/// What a TC program decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tc {
    /// On: to the stack, or out by the device.
    Next,
    /// Gone.
    Drop,
}

/// Numbers of the maps that are used by name from here.
pub(crate) struct Known {
    pub(crate) control: usize,
    pub(crate) conns: usize,
    pub(crate) ahead: usize,
    pub(crate) clients: usize,
    pub(crate) unseen: usize,
    pub(crate) sets: usize,
    pub(crate) large: usize,
    pub(crate) digests: usize,
    pub(crate) stats: usize,
    pub(crate) latency: usize,
    pub(crate) heat: usize,
    pub(crate) commands: usize,
    pub(crate) listeners: usize,
    pub(crate) misses: usize,
    pub(crate) wakes: usize,
    pub(crate) held: usize,
    pub(crate) busy: usize,
    pub(crate) log: usize,
    pub(crate) places: usize,
}

pub(crate) struct Inner {
    /// The build whose maps these are.
    pub(crate) library: Library,
    /// The builds at work, by [`Hook`].
    programs: RefCell<[Library; Hook::ALL.len()]>,
    /// Who runs network programs in place of these builds.
    pub(crate) interpreter: OnceCell<Rc<dyn Interpreter>>,
    pub(crate) kernel: Rc<dyn Kernel>,
    maps: Vec<UnsafeCell<Map>>,
    /// What a daemon maps of them.
    pub(crate) plane: (Control, Buffers),
    pub(crate) known: Known,
    scratch: Vec<usize>,
    pub(crate) config: DatapathConfig,
    random: RefCell<fastrand::Rng>,
    garbage: Box<[u8]>,
    pub(crate) homes: RefCell<Vec<Home>>,
    pub(crate) outside: Cell<u32>,
    pub(crate) runs: Cell<u64>,
    under_way: UnderWay,
    pub(crate) module: Module,
}

impl Inner {
    /// The map of this number. Programs hold pointers into values, never references.
    #[expect(
        clippy::mut_from_ref,
        reason = "maps are shared by all tasks, one of which runs"
    )]
    pub(crate) fn map(&self, number: usize) -> &mut Map {
        // SAFETY: one task runs at a time, and no caller keeps this reference across a point or a
        // call of a program.
        unsafe { &mut *self.maps[number].get() }
    }

    /// The entry whose lock this is, if it is an entry's.
    pub(crate) fn entry_of(&self, lock: *mut u32) -> Option<*const erb_abi::conn> {
        let Map::Hash(conns) = self.map(self.known.conns) else {
            return None;
        };
        let values = conns.values();
        let at = (lock as usize)
            .wrapping_sub(std::mem::offset_of!(erb_abi::conn, lock))
            .wrapping_sub(values.start());
        let index = at / values.stride();
        let is_one = at % values.stride() == 0 && index < values.count();
        is_one.then(|| values.get(index).cast_const().cast())
    }

    /// Writes the socket as it now is into what the program sees.
    pub(crate) fn refresh(&self, held: &mut Held) {
        match self.kernel.view(held.sock) {
            Some(sock) => held.last = sock,
            None => held.last.state = gone(held.last.state),
        }
        self.fill(&mut held.mirror, &held.last);
    }

    /// Writes a socket into memory as C sees it.
    pub(crate) fn fill(&self, mirror: &mut [u64], sock: &Sock) {
        assert!(
            mirror.len() * 8 >= self.library.mirror_bytes(),
            "a mirror holds a socket"
        );
        // SAFETY: the mirror is as long as the library says; only C reads it.
        unsafe { (self.library.symbols().mirror_fill)(mirror.as_mut_ptr().cast(), sock) };
    }

    /// A new reference to a socket, held until it is released.
    pub(crate) fn hold(&self, sock: u64) -> Option<*mut c_void> {
        let last = self.kernel.view(sock)?;
        Some(self.hold_view(sock, last))
    }

    fn hold_view(&self, sock: u64, last: Sock) -> *mut c_void {
        let words = self.library.mirror_bytes().div_ceil(8);
        let mut held = Held {
            mirror: vec![0; words].into(),
            sock,
            last,
        };
        self.refresh(&mut held);
        let at = held.mirror.as_mut_ptr().cast();
        exec().held.push(held);
        at
    }

    /// Ends a reservation in whichever ring it is.
    pub(crate) fn finish_record(&self, at: *mut u8, discard: bool) -> bool {
        (0..self.maps.len()).any(|number| match self.map(number) {
            Map::Ring(ring) => ring.finish(at, discard),
            _ => false,
        })
    }

    fn scramble(&self) {
        let one_in = self.config.garbage_one_in;
        if one_in == 0 {
            return;
        }
        let mut random = self.random.borrow_mut();
        if random.u32(..one_in) != 0 {
            return;
        }
        let cpu = exec::current_cpu();
        for number in &self.scratch {
            let (values, which) = match self.map(*number) {
                // A program that runs in a process may be suspended with its content in there.
                Map::Array(_) if self.under_way.is_any() => continue,
                Map::Array(values) => (&*values, 0..values.count()),
                Map::PerCpu { values, entries } => (&*values, cpu * *entries..(cpu + 1) * *entries),
                Map::Hash(_) | Map::Ring(_) => continue,
            };
            let start = random.usize(..=self.garbage.len() - values.bytes());
            values.scramble(which, &self.garbage[start..]);
        }
    }
}

/// The data path of one machine: its maps live until the machine is switched off, whatever becomes of
/// the daemon. A handle; clones are the same machine's.
#[derive(Clone)]
pub struct Datapath(pub(crate) Rc<Inner>);

impl Datapath {
    /// Maps as the loader makes them: command table and control block filled, nothing admitted.
    ///
    /// # Panics
    /// If the library lacks a map that the loader fills.
    #[must_use]
    pub fn new(library: &Library, config: DatapathConfig, kernel: Rc<dyn Kernel>) -> Self {
        assert!(config.sets.is_power_of_two(), "sets must be a power of two");
        let shapes = library.maps();
        let number = |name: &str| {
            let found = shapes.iter().position(|shape| shape.name == name);
            found.unwrap_or_else(|| panic!("the data path has no map {name}"))
        };
        let known = Known {
            control: number("erb_control"),
            conns: number("erb_conns"),
            ahead: number("erb_ahead"),
            clients: number("erb_clients"),
            unseen: number("erb_unseen"),
            sets: number("erb_sets"),
            large: number("erb_large"),
            digests: number("erb_digests"),
            stats: number("erb_stats"),
            latency: number("erb_latency"),
            heat: number("erb_heat"),
            commands: number("erb_commands"),
            listeners: number("erb_listeners"),
            misses: number("erb_misses"),
            wakes: number("erb_wakes"),
            held: number("erb_held"),
            busy: number("erb_busy"),
            log: number("erb_log"),
            places: number("erb_places"),
        };
        let maps = shapes.iter().map(|shape| {
            let entries = match shape.name.as_str() {
                "erb_sets" | "erb_digests" | "erb_large" => config.sets as usize,
                "erb_conns" | "erb_places" => config.conns as usize,
                "erb_place_lines" => (config.conns as usize).div_ceil(erb_abi::PLACE_LINE as usize),
                "erb_ahead" => AHEAD_BUFFERS,
                "erb_misses" | "erb_held" => config.ring_bytes,
                "erb_log" => config.cpus,
                _ => shape.max_entries,
            };
            UnsafeCell::new(Map::new(shape, entries, config.cpus, library.symbols()))
        });
        let mut random = fastrand::Rng::with_seed(config.seed);
        let mut garbage = vec![0; GARBAGE_BYTES].into_boxed_slice();
        random.fill(&mut garbage);
        let scratch = shapes
            .iter()
            .enumerate()
            .filter(|(_, shape)| !shape.pinned());
        let maps: Vec<UnsafeCell<Map>> = maps.collect();
        let path = Self(Rc::new(Inner {
            plane: mapped(shapes, &maps),
            maps,
            scratch: scratch.map(|(number, _)| number).collect(),
            known,
            library: library.clone(),
            programs: RefCell::new(Hook::ALL.map(|_| library.clone())),
            interpreter: OnceCell::new(),
            kernel,
            random: RefCell::new(random),
            garbage,
            homes: RefCell::new(Vec::new()),
            config,
            outside: Cell::new(0),
            runs: Cell::new(0),
            under_way: UnderWay::default(),
            module: Module::default(),
        }));
        path.fill_maps();
        path
    }

    /// Lets the program at one place be another build's from the next packet on. Executions under
    /// way end as they began.
    ///
    /// # Panics
    /// If its maps are others.
    pub fn replace(&self, hook: Hook, library: &Library) {
        assert!(
            self.0.library.has_same_maps(library),
            "programs of another layout cannot take over"
        );
        self.0.programs.borrow_mut()[hook as usize] = library.clone();
    }

    fn programs(&self, hook: Hook) -> Library {
        self.0.programs.borrow()[hook as usize].clone()
    }

    /// Runs the XDP program on a received frame.
    pub fn run_xdp(&self, packet: &mut Packet) -> Xdp {
        let [data_meta, data, data_end] = packet.pointers();
        let mut ctx = XdpCtx {
            data,
            data_end,
            data_meta,
            ingress_ifindex: packet.ifindex,
            rx_queue_index: 0,
            egress_ifindex: 0,
            packet: std::ptr::from_mut(packet),
        };
        let library = self.programs(Hook::Xdp);
        let program = library.symbols().xdp;
        let guard = Guard::new(&self.0, packet);
        let at = &raw mut ctx;
        // SAFETY: ctx and the packet live through the call.
        let compiled = || unsafe { program(at) };
        let call = Call::new(at, packet);
        let verdict = self.run(packet.ifindex, || self.execute("erb_xdp", &call, compiled));
        drop(guard);
        match verdict {
            1 => Xdp::Drop,
            2 => Xdp::Pass,
            3 => Xdp::Tx,
            other => violation(&format!("erb_xdp returns {other}")),
        }
    }

    /// Runs the TC ingress program on a packet that XDP passed (its metadata still in place).
    pub fn run_tc_ingress(&self, packet: &mut Packet) -> Tc {
        let library = self.programs(Hook::Ingress);
        let program = library.symbols().tc_ingress;
        let name = "erb_tc_ingress";
        tc_verdict(self.run_skb(packet, program, name), name)
    }

    /// Runs the TC egress program on a packet that leaves by a device.
    pub fn run_tc_egress(&self, packet: &mut Packet) -> Tc {
        let library = self.programs(Hook::Egress);
        let program = library.symbols().tc_egress;
        let name = "erb_tc_egress";
        tc_verdict(self.run_skb(packet, program, name), name)
    }

    /// Runs one of the daemon's programs on the first device, if on any; returns its value.
    pub fn run_prog(&self, program: Program) -> i32 {
        self.run_prog_on(program, self.0.config.devices[0])
    }

    /// The same on another device.
    pub fn run_prog_on(&self, program: Program, ifindex: u32) -> i32 {
        if !program.is_on_device() {
            let library = self.programs(Hook::Control);
            let number = program as usize - Program::ON_DEVICE;
            return self.run_syscall(library.symbols().calls[number]);
        }
        self.run_prog_on_frame(program, ifindex, &[0; 64])
    }

    /// One that is run on a device, on this frame.
    pub fn run_prog_on_frame(&self, program: Program, ifindex: u32, frame: &[u8]) -> i32 {
        let library = self.programs(Hook::Control);
        let on_device = library.symbols().on_device[program as usize];
        let mut packet = Packet::received(frame, crate::Card::VETH, ifindex);
        self.run_skb(&mut packet, on_device, program.name())
    }

    fn run_skb(&self, packet: &mut Packet, program: SkbProgram, name: &'static str) -> i32 {
        let mut ctx = SkbCtx::of(packet);
        let guard = Guard::new(&self.0, packet);
        let at = &raw mut ctx;
        // SAFETY: ctx and the packet live through the call.
        let compiled = || unsafe { program(at) };
        let call = Call::new(at, packet);
        let verdict = self.run(packet.ifindex, || self.execute(name, &call, compiled));
        drop(guard);
        packet.mark = ctx.mark;
        verdict
    }

    /// In a task: returns when the network programs have ended that are under way, as the kernel's update of a map of
    /// maps does.
    pub fn wait_for_programs(&self) {
        self.0.under_way.wait();
    }

    /// Whether any program is under way.
    #[must_use]
    pub fn is_amid(&self) -> bool {
        self.0.under_way.is_any()
    }

    fn execute(&self, name: &'static str, call: &Call, compiled: impl FnOnce() -> i32) -> i32 {
        match self.0.interpreter.get() {
            Some(interpreter) => interpreter.run(name, call),
            None => compiled(),
        }
    }

    fn run_syscall(&self, program: SyscallProgram) -> i32 {
        // A process: softirqs of its CPU may come in between, unlike in network programs.
        // SAFETY: syscall programs of ERB take no context.
        self.run_unpinned(0, || unsafe { program(std::ptr::null_mut()) })
    }

    fn run(&self, ifindex: u32, program: impl FnOnce() -> i32) -> i32 {
        self.run_unpinned(ifindex, || {
            let _pinned = exec::pin();
            let _section = self.0.under_way.begin_section();
            program()
        })
    }

    fn run_unpinned(&self, ifindex: u32, program: impl FnOnce() -> i32) -> i32 {
        let mut outside = Exec::new(u32::MAX, self.0.outside.get() as usize);
        let _restore = if exec::exec_pointer().is_null() {
            exec::set_exec(&raw mut outside);
            Some(Outside)
        } else {
            None
        };
        self.0.runs.set(self.0.runs.get() + 1);
        let me = exec();
        let nested = !me.inner.is_null();
        let (held, records, casts) = (me.held.len(), me.records.len(), me.casts.len());
        let around = std::mem::replace(&mut me.ifindex, ifindex);
        me.inner = Rc::as_ptr(&self.0);
        if !nested {
            self.0.scramble();
        }
        let _running = self.0.under_way.begin();
        exec::point();
        let verdict = program();
        let me = exec();
        if !me.lock.is_null() {
            violation("a program ends while it holds a lock");
        }
        if me.held.len() != held {
            violation("a program ends without releasing a socket");
        }
        if me.records.len() != records {
            violation("a program ends without submitting a ring record");
        }
        me.ifindex = around;
        me.casts.truncate(casts);
        if !nested {
            me.inner = std::ptr::null();
        }
        exec::point();
        verdict
    }
}

/// Runs the egress program on a clone, inside of the program that runs.
pub(crate) fn run_egress(packet: &mut Packet) -> Tc {
    let inner = exec().inner;
    // SAFETY: inner comes from the Rc of the Datapath whose program runs; the count is raised first.
    let path = unsafe {
        Rc::increment_strong_count(inner);
        Datapath(Rc::from_raw(inner))
    };
    path.run_tc_egress(packet)
}

struct Outside;

impl Drop for Outside {
    fn drop(&mut self) {
        exec::set_exec(std::ptr::null_mut());
    }
}

fn tc_verdict(verdict: i32, program: &str) -> Tc {
    match verdict {
        -1 | 0 => Tc::Next,
        2 => Tc::Drop,
        other => violation(&format!("{program} returns {other}")),
    }
}

impl SkbCtx {
    pub(crate) fn of(packet: &mut Packet) -> Self {
        let tag = packet.vlan.map_or([0; 3], |(kind, tci)| {
            [1, u32::from(tci), u32::from(kind.to_be())]
        });
        let mut ctx = Self {
            mark: packet.mark,
            before_ingress: [0, 0, tag[0], tag[1], tag[2], 0],
            ingress_ifindex: packet.ingress_ifindex,
            ifindex: packet.ifindex,
            gso_segs: packet.gso_segs,
            network_header: packet.l3,
            ip_summed: packet.csum as u8,
            route: packet.route,
            packet: std::ptr::from_mut(packet),
            // SAFETY: a context is plain integers and a pointer, for which zeros are valid.
            ..unsafe { std::mem::zeroed() }
        };
        ctx.update(packet);
        ctx
    }

    /// Length and pointers, after the packet's room has changed.
    pub(crate) fn update(&mut self, packet: &Packet) {
        [self.data_meta, self.data, self.data_end] = packet.pointers();
        self.len = packet.len() as u32;
        self.wire_len = self.len;
    }
}

/// While it lives, a sanitized build may touch nothing of the buffer but metadata and frame.
struct Guard {
    at: *mut u8,
    bytes: usize,
    // SAFETY: for memory of ours only.
    unguard: unsafe extern "C" fn(*const c_void, u64),
}

impl Guard {
    fn new(inner: &Inner, packet: &Packet) -> Option<Self> {
        if !crate::SANITIZED {
            return None;
        }
        guard_packet(inner, packet);
        let (at, bytes) = packet.buffer();
        let unguard = inner.library.symbols().unguard;
        Some(Self { at, bytes, unguard })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: the buffer is alive: the packet outlives the run.
        unsafe { (self.unguard)(self.at.cast(), self.bytes as u64) };
    }
}

/// Guards what is outside metadata and frame; called again when the room has changed.
pub(crate) fn guard_packet(inner: &Inner, packet: &Packet) {
    if !crate::SANITIZED {
        return;
    }
    let symbols = inner.library.symbols();
    let (at, bytes) = packet.buffer();
    let [meta, _, end] = packet.pointers().map(|pointer| pointer as usize);
    let base = at as usize;
    // SAFETY: all ranges lie within the buffer.
    unsafe {
        (symbols.guard)(at.cast(), bytes as u64);
        (symbols.unguard)(at.add(meta - base).cast(), (end - meta) as u64);
    }
}
