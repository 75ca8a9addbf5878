// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loading: three objects that share their maps through pins in one bpffs folder.

use std::borrow::Cow;
use std::cell::RefCell;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::thread;

use erb_abi::{COMMANDS, Control, ERB_ABI_VERSION, MapShape, hash_secret};
use libbpf_rs::{
    MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print,
};

use crate::mapped::mapped;
use crate::{Error, Programs, Result, Sizes};

/// Messages of libbpf kept for the error text: the end of a verifier log names the instruction.
const MESSAGES_MAX: usize = 60;

thread_local! {
    /// Of this thread: two verifiers at work do not mix their logs.
    static MESSAGES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Who writes down what is answered in the server's place, where all of it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalSink {
    /// The daemon reads it out of the log rings.
    #[default]
    Daemon,
    /// The kernel module `erb_io`, to which the programs hand each record. They hold it while they are loaded.
    Kmod,
}

impl JournalSink {
    /// How the programs' names end that answer writes for it.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Daemon => "_absorb",
            Self::Kmod => "_keep",
        }
    }
}

/// What the data path must know when it is made.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Sizes of cache and table.
    pub sizes: Sizes,
    /// Who writes the journal.
    pub sink: JournalSink,
    /// Redis's port, host order.
    pub port: u16,
    /// Indexes of the devices to be boosted, at most [`erb_abi::DEVICES_MAX`].
    pub devices: Vec<u32>,
    /// Keys the key hash; unknown to clients, so that nobody can aim at one cache set.
    pub hash: hash_secret,
}

/// The last messages of libbpf and the verifier to this thread, oldest first.
pub(crate) fn libbpf_messages() -> String {
    MESSAGES.with_borrow(|kept| kept.join("\n"))
}

pub(crate) fn keep_message(_level: PrintLevel, message: String) {
    MESSAGES.with_borrow_mut(|kept| {
        kept.extend(message.lines().map(str::to_owned));
        let extra = kept.len().saturating_sub(MESSAGES_MAX);
        kept.drain(..extra);
    });
}

/// Why the kernel or libbpf does not take an object.
pub(crate) fn refused(name: &str, error: &libbpf_rs::Error) -> Error {
    Error::Load {
        what: format!("the {name} object"),
        reason: error.to_string(),
        log: libbpf_messages(),
    }
}

/// The stages of an object, for its programs' tail calls, are pinned under this and its name.
const STAGES: &str = "stages_";

/// Path of a program's pin, or of an object's stages.
pub(crate) fn program_pin(root: &Path, name: &str) -> PathBuf {
    if name.starts_with(STAGES) {
        return root.join(name);
    }
    root.join(format!("prog_{name}"))
}

/// Loads the programs that this one was built with; see [`load_programs`].
///
/// # Errors
/// As there.
pub fn load(root: &Path, options: &LoadOptions) -> Result<()> {
    load_programs(root, options, &Programs::builtin())
}

/// Loads all programs, pins maps and programs in `root` (an empty bpffs folder), and fills the
/// control block and the command table. Nothing is attached.
///
/// # Errors
/// [`Error::Load`] with the verifier's last lines if the kernel refuses; pins made so far are
/// removed again.
pub fn load_programs(root: &Path, options: &LoadOptions, programs: &Programs) -> Result<()> {
    let loaded = load_objects(root, (options.sizes, options.sink), programs, program_pin)
        .and_then(|()| fill_maps(root, options));
    if loaded.is_err() {
        remove_pins(root);
    }
    loaded
}

/// Loads the objects over the maps that are pinned in `root`, making those that are not, and pins
/// each program where `pin` says.
///
/// Loading is the verifier's work, which the kernel does for several programs at once. The first
/// object makes every shared map; the others, each a second of work, go side by side.
pub(crate) fn load_objects(
    root: &Path,
    wanted: (Sizes, JournalSink),
    programs: &Programs,
    pin: fn(&Path, &str) -> PathBuf,
) -> Result<()> {
    set_print(Some((PrintLevel::Info, keep_message)));
    let mut objects = programs.objects();
    if let Some((name, bytes)) = objects.next() {
        load_object(root, wanted, name, bytes, pin)?;
    }
    thread::scope(|scope| {
        let loads: Vec<_> = objects
            .map(|(name, bytes)| scope.spawn(move || load_object(root, wanted, name, bytes, pin)))
            .collect();
        loads.into_iter().try_for_each(|load| {
            load.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn load_object(
    root: &Path,
    (sizes, sink): (Sizes, JournalSink),
    name: &str,
    bytes: &[u8],
    pin: fn(&Path, &str) -> PathBuf,
) -> Result<()> {
    let refused = |error| refused(name, &error);
    let sink = (sizes.log_rings > 0).then_some(sink);
    let bytes = match sink {
        Some(JournalSink::Kmod) => Cow::Borrowed(bytes),
        _ => Cow::Owned(without_prefetch(bytes)),
    };
    let mut object = ObjectBuilder::default()
        .pin_root_path(root)
        .and_then(|builder| builder.open_memory(&bytes))
        .map_err(refused)?;
    for mut map in object.maps_mut() {
        if let Some(entries) = sizes.entries_of(&map.name().to_string_lossy()) {
            map.set_max_entries(entries).map_err(refused)?;
        }
    }
    leave_out_absorption(&mut object, sink).map_err(refused)?;
    let mut object = object.load().map_err(refused)?;
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if is_wanted(&name, sink) {
            program.pin(pin(root, &name)).map_err(refused)?;
        }
    }
    if let Some(sink) = sink {
        fill_stages(&mut object, sink, &pin(root, &format!("{STAGES}{name}"))).map_err(refused)?;
    }
    Ok(())
}

/// What the programs of reads call of the module, as an object has its name.
const PREFETCH: &[u8] = b"\0erb_prefetch\0";

/// A name that no kernel has.
const NO_PREFETCH: &[u8] = b"\0erb_no_fetch\0";

/// The object for programs that are not to hold the module, whether it is there or not. What they call of it is weak: under
/// a name that nobody has it is not there, and the kernel leaves out what stands behind it.
pub(crate) fn without_prefetch(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = bytes[at..]
        .windows(PREFETCH.len())
        .position(|here| here == PREFETCH)
    {
        at += found;
        bytes[at..at + NO_PREFETCH.len()].copy_from_slice(NO_PREFETCH);
    }
    bytes
}

/// How many CPUs the kernel may ever have: as many rings a log has.
///
/// # Errors
/// [`Error::System`] if it does not tell.
pub fn possible_cpus() -> Result<u32> {
    let told = libbpf_rs::num_possible_cpus().map_err(|error| Error::System {
        what: "could not ask for the kernel's processors".to_owned(),
        reason: std::io::Error::other(error),
    })?;
    Ok(u32::try_from(told).unwrap_or(u32::MAX))
}

/// Programs that answer writes in the server's place.
pub(crate) const ABSORPTION: [&str; 4] = [
    "erb_xdp_absorb",
    "erb_tc_absorb",
    "erb_xdp_keep",
    "erb_tc_keep",
];

/// Whether a program answers writes in the server's place (`bpf/splice/absorb.h`).
pub(crate) fn is_of_absorption(program: &str) -> bool {
    ABSORPTION.contains(&program)
}

/// Whether a program is loaded where writes are answered for this sink; none: they are not.
fn is_wanted(program: &str, sink: Option<JournalSink>) -> bool {
    !is_of_absorption(program) || sink.is_some_and(|sink| program.ends_with(sink.suffix()))
}

/// Loads those of these programs that are wanted; if none is, their log is not made either, which is megabytes for
/// each CPU. Those of the other sink would hold its module.
pub(crate) fn leave_out_absorption(
    object: &mut OpenObject,
    sink: Option<JournalSink>,
) -> libbpf_rs::Result<()> {
    for mut program in object.progs_mut() {
        if !is_wanted(&program.name().to_string_lossy(), sink) {
            program.set_autoload(false);
        }
    }
    if sink.is_some() {
        return Ok(());
    }
    let mut maps = object.maps_mut();
    maps.find(|map| map.name() == "erb_log")
        .map_or(Ok(()), |mut log| log.set_autocreate(false))
}

/// Lets the programs of a tier call each other: `enum stage` of `bpf/splice/stages.h`. The kernel empties an array of
/// programs that no process and no pin has (`map_release_uref`).
fn fill_stages(object: &mut Object, sink: JournalSink, pin: &Path) -> libbpf_rs::Result<()> {
    let Some(mut stages) = object.maps_mut().find(|map| map.name() == "erb_stages") else {
        return Ok(());
    };
    stages.pin(pin)?;
    let stages = MapHandle::from_pinned_path(pin)?;
    for program in object.progs() {
        let stage: u32 = match program.name().to_string_lossy().as_ref() {
            "erb_xdp" | "erb_tc_ingress" => 0,
            name if name.ends_with(sink.suffix()) => 1,
            _ => continue,
        };
        let fd = program.as_fd().as_raw_fd();
        stages.update(&stage.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)?;
    }
    Ok(())
}

pub(crate) fn open_map(root: &Path, name: &'static str) -> Result<MapHandle> {
    MapHandle::from_pinned_path(root.join(name)).map_err(|error| Error::map(name, error))
}

fn fill_maps(root: &Path, options: &LoadOptions) -> Result<()> {
    check_shapes(root)?;
    fill_commands(root)?;
    let control = Control::new(mapped(root, "erb_control")?);
    control.set_port_be(options.port.to_be());
    control.set_devices(&options.devices);
    control.set_set_mask(u64::from(options.sizes.cache.sets()) - 1);
    control.set_conns_max(options.sizes.table.connections());
    control.set_client_conns_max(options.sizes.table.per_address());
    control.set_hash_secret(options.hash);
    control.set_fills(1);
    control.set_abi_version(ERB_ABI_VERSION);
    Ok(())
}

/// Writes the class of every known command.
pub(crate) fn fill_commands(root: &Path) -> Result<()> {
    let commands = open_map(root, "erb_commands")?;
    for command in &COMMANDS {
        commands
            .update(&command.key(), &command.row(), MapFlags::ANY)
            .map_err(|error| Error::map("erb_commands", format!("{}: {error}", command.name)))?;
    }
    Ok(())
}

/// Compares key and value sizes of every pinned map with the mirror.
pub(crate) fn check_shapes(root: &Path) -> Result<()> {
    let mut shapes = erb_abi::MAPS.iter();
    shapes.try_for_each(|shape| check_shape(root, shape))
}

/// The same of one map.
pub(crate) fn check_shape(root: &Path, shape: &MapShape) -> Result<()> {
    let path = root.join(shape.name);
    let map = MapHandle::from_pinned_path(&path).map_err(|error| Error::Pin {
        what: path.display().to_string(),
        reason: error.to_string(),
    })?;
    let found = (map.key_size() as usize, map.value_size() as usize);
    if found == (shape.key_bytes, shape.value_bytes) {
        return Ok(());
    }
    Err(Error::OtherVersion {
        path: root.to_path_buf(),
        what: format!(
            "map {} has keys and values of {found:?} bytes, expected {:?}",
            shape.name,
            (shape.key_bytes, shape.value_bytes)
        ),
    })
}

/// Removes every pin in the folder: programs, maps, links. What is only held by its pin goes.
pub fn remove_pins(root: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else {
        return;
    };
    for entry in entries.flatten() {
        // A pin that somebody else removed meanwhile is what we want.
        let _ = std::fs::remove_file(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_hold_the_module_names_nothing_of_it() {
        let names = |bytes: &[u8]| {
            let is_one = |at: &&[u8]| *at == PREFETCH;
            bytes.windows(PREFETCH.len()).filter(is_one).count()
        };
        let programs = Programs::builtin();
        let mut known = 0;
        for (name, bytes) in programs.objects() {
            let without = without_prefetch(bytes);
            assert_eq!(without.len(), bytes.len(), "{name}");
            assert_eq!(names(&without), 0, "{name}");
            known += usize::from(names(bytes) > 0);
        }
        assert_eq!(known, 2, "both tiers call it");
    }
}
