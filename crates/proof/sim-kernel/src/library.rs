// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled data path: programs and maps of one build, the builtin one or a mutant's.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use erb_abi::Program;

use crate::compile::{self, CompileError, Flavour};
use crate::helpers::{OPS, Ops};
use crate::kernel::Sock;

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be loaded.
    #[error("could not load the data path from {path}: {source}")]
    Open {
        /// The file.
        path: String,
        /// What the system says.
        source: libloading::Error,
    },
    /// The sources do not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// Its maps or structures are not what the simulator expects.
    #[error("the data path does not fit the simulator: {0}")]
    Shape(String),
}

/// A place at which programs of a build are at work; each place can have another build's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The device's egress.
    Egress,
    /// The device's ingress behind XDP.
    Ingress,
    /// XDP.
    Xdp,
    /// What the daemon runs.
    Control,
}

impl Hook {
    /// All of them, in the order in which a replacement changes them.
    pub const ALL: [Self; 4] = [Self::Egress, Self::Ingress, Self::Xdp, Self::Control];
}

/// `struct xdp_md` and the packet behind it.
#[repr(C)]
pub(crate) struct XdpCtx {
    pub(crate) data: u32,
    pub(crate) data_end: u32,
    pub(crate) data_meta: u32,
    pub(crate) ingress_ifindex: u32,
    pub(crate) rx_queue_index: u32,
    pub(crate) egress_ifindex: u32,
    pub(crate) packet: *mut crate::Packet,
}

/// `struct __sk_buff`, the part of `struct sk_buff` that is read, and the packet behind them.
#[repr(C)]
pub(crate) struct SkbCtx {
    pub(crate) len: u32,
    pub(crate) pkt_type: u32,
    pub(crate) mark: u32,
    pub(crate) before_ingress: [u32; 6],
    pub(crate) ingress_ifindex: u32,
    pub(crate) ifindex: u32,
    pub(crate) before_data: [u32; 8],
    pub(crate) data: u32,
    pub(crate) data_end: u32,
    pub(crate) before_meta: [u32; 14],
    pub(crate) data_meta: u32,
    pub(crate) flow_keys: u64,
    pub(crate) tstamp: u64,
    pub(crate) wire_len: u32,
    pub(crate) gso_segs: u32,
    pub(crate) sk: u64,
    pub(crate) gso_size: u32,
    pub(crate) pad: u32,
    pub(crate) refdst: usize,
    pub(crate) network_header: u16,
    pub(crate) head: usize,
    pub(crate) kernel_data: usize,
    pub(crate) ip_summed: u8,
    pub(crate) packet: *mut crate::Packet,
    pub(crate) route: u32,
    pub(crate) route_ifindex: u32,
    pub(crate) route_dst: usize,
}

#[repr(C)]
struct MapDef {
    map: *mut c_void,
    name: *const c_char,
    object: *const c_char,
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
}

// SAFETY: of all programs: the context must be of the program's type and its packet alive.
pub(crate) type XdpProgram = unsafe extern "C-unwind" fn(*mut XdpCtx) -> i32;
pub(crate) type SkbProgram = unsafe extern "C-unwind" fn(*mut SkbCtx) -> i32;
pub(crate) type SyscallProgram = unsafe extern "C-unwind" fn(*mut c_void) -> i32;

/// `struct sim_library`.
///
/// # Safety
/// Of its functions: a mirror is as long as `sizes` says; guarded memory is the caller's own; a module's memory is of
/// `io_bytes` and begins with zeros; a header has 64 bytes.
#[repr(C)]
pub(crate) struct Symbols {
    ops: *mut Ops,
    maps: *const MapDef,
    maps_end: *const MapDef,
    pub(crate) mirror_fill: unsafe extern "C" fn(*mut c_void, *const Sock),
    pub(crate) guard: unsafe extern "C" fn(*const c_void, u64),
    pub(crate) unguard: unsafe extern "C" fn(*const c_void, u64),
    sizes: [u32; 8],
    pub(crate) xdp: XdpProgram,
    pub(crate) tc_ingress: SkbProgram,
    pub(crate) tc_egress: SkbProgram,
    /// Control programs, in the order of [`Program`].
    pub(crate) on_device: [SkbProgram; Program::ON_DEVICE],
    pub(crate) calls: [SyscallProgram; Program::ALL.len() - Program::ON_DEVICE],
    pub(crate) io_bytes: u64,
    // SAFETY: of all four: the first is the module of this data path, and bytes are alive.
    pub(crate) io_file: unsafe extern "C" fn(*mut c_void, u32, *const u8) -> i32,
    pub(crate) io_write: unsafe extern "C" fn(*mut c_void, *mut u8, u32) -> u32,
    pub(crate) io_sync: unsafe extern "C" fn(*mut c_void),
    pub(crate) io_shut: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: shim/library.c defines it with this layout, whose sizes adopt() compares.
unsafe extern "C" {
    static sim_library: Symbols;
}

/// A map as its definition in C says.
#[derive(Clone, Debug)]
pub(crate) struct MapShape {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    pub(crate) max_entries: usize,
    objects: Vec<String>,
}

impl MapShape {
    /// Pinned maps are shared and keep their content; the others are scratch.
    pub(crate) fn pinned(&self) -> bool {
        self.name.starts_with("erb_")
    }
}

struct Loaded {
    symbols: *const Symbols,
    maps: Vec<MapShape>,
    /// Keeps the file mapped.
    _file: Option<libloading::Library>,
}

// SAFETY: symbols points to constant data of a library that stays loaded; programs touch only the
// maps and packets of the thread that runs them.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A build of the data path. Cheap to clone; one can serve many worlds and threads.
#[derive(Clone)]
pub struct Library(Arc<Loaded>);

impl Library {
    /// The sources as they are in this tree.
    ///
    /// # Panics
    /// If they do not fit the simulator: a structure or map that it does not know.
    #[must_use]
    pub fn builtin() -> Self {
        static BUILTIN: OnceLock<Library> = OnceLock::new();
        let load = || {
            // SAFETY: sim_library is constant data of the linked C objects.
            let loaded = unsafe { Self::adopt(&raw const sim_library, None) };
            loaded.unwrap_or_else(|error| panic!("{error}"))
        };
        BUILTIN.get_or_init(load).clone()
    }

    /// Compiles the data path in the folder `bpf` (a copy of the tree's, edited) into the folder
    /// `out`, and loads it.
    ///
    /// # Errors
    /// [`LoadError`] if it does not compile or does not fit.
    pub fn build(bpf: &Path, out: &Path) -> Result<Self, LoadError> {
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim");
        let flavour = if crate::SANITIZED {
            Flavour::Sanitized
        } else {
            Flavour::Plain
        };
        let library = out.join("datapath.so");
        let objects = compile::objects(bpf, &shim, out, flavour, compile::names())?;
        compile::link(&objects, &library, flavour)?;
        Self::load(&library)
    }

    /// The sources as they are in this tree once more: the same programs in another place, so that
    /// the ones can replace the others. Compiled at the first call.
    ///
    /// # Panics
    /// If they do not compile.
    #[must_use]
    pub fn second() -> Self {
        static SECOND: OnceLock<Library> = OnceLock::new();
        let build = || {
            let out = std::env::temp_dir().join(format!("erb-second-{}", std::process::id()));
            let built = std::fs::create_dir_all(&out)
                .map_err(|error| error.to_string())
                .and_then(|()| {
                    Self::build(&Self::sources(), &out).map_err(|error| error.to_string())
                });
            // A loaded file need not stay where it was.
            let _ = std::fs::remove_dir_all(&out);
            built.unwrap_or_else(|error| panic!("{error}"))
        };
        SECOND.get_or_init(build).clone()
    }

    /// Whether the maps of both are the same in name, order and shape.
    pub(crate) fn has_same_maps(&self, other: &Self) -> bool {
        let shape = |map: &MapShape| {
            (
                map.name.clone(),
                map.kind,
                map.key_bytes,
                map.value_bytes,
                map.max_entries,
            )
        };
        self.maps()
            .iter()
            .map(shape)
            .eq(other.maps().iter().map(shape))
    }

    /// The folder of the tree's own sources.
    #[must_use]
    pub fn sources() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../bpf")
    }

    /// Copies the tree's own sources, folder by folder, to `to`, which is made.
    ///
    /// # Errors
    /// What the file system said.
    pub fn copy_sources(to: &Path) -> std::io::Result<()> {
        Self::copy_folder(&Self::sources(), to)
    }

    /// Copies a folder's files, folder by folder, into `to`, which is made if it is not there.
    ///
    /// # Errors
    /// What the file system said.
    pub fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let copy = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                Self::copy_folder(&entry.path(), &copy)?;
            } else {
                std::fs::copy(entry.path(), copy)?;
            }
        }
        Ok(())
    }

    /// A shared library that [`crate::compile::link`] made.
    ///
    /// # Errors
    /// [`LoadError`] if it is none, or was built for another simulator.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Open {
            path: path.display().to_string(),
            source,
        };
        // SAFETY: our own C without constructors; mutants are built from it.
        let file = unsafe { libloading::Library::new(path) }.map_err(failed)?;
        // SAFETY: the symbol is a struct sim_library in every library built from shim/library.c.
        let symbols = unsafe {
            *file
                .get::<*const Symbols>(b"sim_library\0")
                .map_err(failed)?
        };
        // SAFETY: as above; the file stays mapped as long as the value lives.
        unsafe { Self::adopt(symbols, Some(file)) }
    }

    /// # Safety
    /// `symbols` must point to a `struct sim_library` that stays valid as long as `file`.
    unsafe fn adopt(
        symbols: *const Symbols,
        file: Option<libloading::Library>,
    ) -> Result<Self, LoadError> {
        // SAFETY: the caller's promise.
        let table = unsafe { &*symbols };
        let expected = [
            size_of::<XdpCtx>(),
            size_of::<SkbCtx>(),
            size_of::<Sock>(),
            table.sizes[3] as usize,
            table.sizes[4] as usize,
            table.sizes[5] as usize,
            table.sizes[6] as usize,
            size_of::<Ops>(),
        ];
        if table.sizes.map(|size| size as usize) != expected {
            return Err(LoadError::Shape(format!(
                "structures of {:?} bytes, expected {expected:?}",
                table.sizes
            )));
        }
        // SAFETY: ops is the library's own table, written before any program runs.
        unsafe { table.ops.write(OPS) };
        // SAFETY: the definitions lie in one section between the two symbols.
        let maps = unsafe { number_maps(table)? };
        Ok(Self(Arc::new(Loaded {
            symbols,
            maps,
            _file: file,
        })))
    }

    pub(crate) fn symbols(&self) -> &Symbols {
        // SAFETY: adopt's caller promised validity for as long as the file, which self keeps.
        unsafe { &*self.0.symbols }
    }

    pub(crate) fn maps(&self) -> &[MapShape] {
        &self.0.maps
    }

    pub(crate) fn mirror_bytes(&self) -> usize {
        self.symbols().sizes[3] as usize
    }

    /// Offsets of the mirror's `tcp_sock`, `tcp_timewait_sock` and `tcp_request_sock`.
    pub(crate) fn mirror_parts(&self) -> [usize; 3] {
        let sizes = &self.symbols().sizes;
        [sizes[4], sizes[5], sizes[6]].map(|at| at as usize)
    }
}

/// Finds the library's maps and writes each one's number into its first word.
///
/// # Safety
/// The definitions and what they point to must be valid.
unsafe fn number_maps(table: &Symbols) -> Result<Vec<MapShape>, LoadError> {
    let mut by_address = BTreeMap::<usize, MapShape>::new();
    let mut at = table.maps;
    while at < table.maps_end {
        // SAFETY: the caller's promise; names are string literals.
        let (def, name, object) = unsafe {
            let def = &*at;
            let text = |at| CStr::from_ptr(at).to_string_lossy().into_owned();
            (def, text(def.name), text(def.object))
        };
        let shape = MapShape {
            name: name.trim_start_matches('&').to_owned(),
            kind: def.kind,
            key_bytes: def.key_bytes as usize,
            value_bytes: def.value_bytes as usize,
            max_entries: def.max_entries as usize,
            objects: vec![object.clone()],
        };
        let known = by_address
            .entry(def.map as usize)
            .or_insert_with(|| shape.clone());
        if (known.value_bytes, known.max_entries) != (shape.value_bytes, shape.max_entries) {
            return Err(LoadError::Shape(format!(
                "two shapes of map {}",
                known.name
            )));
        }
        if !known.objects.contains(&object) {
            known.objects.push(object);
        }
        // SAFETY: still within, or one behind, the section.
        at = unsafe { at.add(1) };
    }
    let mut by_name: Vec<(usize, MapShape)> = by_address.into_iter().collect();
    by_name.sort_by(|a, b| a.1.name.cmp(&b.1.name));
    for (number, (address, shape)) in by_name.iter().enumerate() {
        if !shape.pinned() && shape.objects.len() > 1 {
            return Err(LoadError::Shape(format!(
                "map {} is not pinned but shared by {:?}: add it to PRIVATE_MAPS of compile.rs",
                shape.name, shape.objects
            )));
        }
        // SAFETY: a map's definition is a writable variable of at least one pointer.
        unsafe { (*address as *mut u64).write(number as u64) };
    }
    Ok(by_name.into_iter().map(|(_, shape)| shape).collect())
}
