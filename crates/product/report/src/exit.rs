// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exit codes of `erb`, decided here and nowhere else.

/// Shown below `erb --help`.
pub const HELP: &str = "\
Exit codes:
  0   done
  1   something else failed; the message says what
  2   arguments that cannot be used
  3   too little privilege
  4   kernel too old or without BTF
  5   no such device, or one that cannot be boosted
  6   the device has an XDP program already
  7   Redis cannot be reached (its name is not known, for one) or refuses the daemon's user, or its
      password file cannot be used
  8   Redis is older than 7.0
  9   nothing listens on Redis's port in this network namespace
  10  a size that cannot be used
  11  already boosted, also by a boost with other devices, or a boost or detach is under way
  12  nothing is boosted
  13  the kernel refused a program
  14  detach: connections still need translation; a daemon leaves with the last one, without a
      daemon nobody does: detach again
  15  what is at work is of another version or build of ERB
  16  boost: it would answer nothing; doctor: the same, or with --file: bytes would be copied
  17  trace: somebody else traces already
  18  lab, bench, check, demo: the program erb-lab is not beside erb
  19  boost, serve, node: an address cannot be listened on
  20  node: another process has the store open
  21  node: no store is there, or it does not open
  22  node: no node has the store open
  23  kv, node status: the node cannot be reached, or does not take the connection
  24  kv: there is no such key or version
  25  kv: the key has another version than the condition names
  26  kv: the node refuses: role, space, retention, a moment in the future
  27  kv: the connection ended before the answer came; it is not known whether that was done
  28  kv, node status: the node does not let this host in: it is not listed, a secret is missing or
      wrong, or the node has not proved itself
  29  boost, node, kv: a file of hosts, secrets or a token cannot be used: it is not there, is none, is
      an old copy, or others than its owner may read or write it
  30  journal check, show: a segment ends before its file does
  31  lab vm: QEMU, a kernel or its headers cannot be had
  128+N  boost: signal N came before it was at work (130 is Ctrl-C); what it had changed was taken back";

/// Something else failed.
pub const FAILED: u8 = 1;
/// Arguments that cannot be used.
pub const USAGE: u8 = 2;
/// Of a check that could not be carried out, which is neither passed nor failed.
pub const NOT_CARRIED_OUT: u8 = 2;
/// Too little privilege.
pub const PRIVILEGE: u8 = 3;
/// The kernel is too old, or without BTF.
pub const KERNEL: u8 = 4;
/// No such device, or one that cannot be boosted.
pub const DEVICE: u8 = 5;
/// The device has an XDP program already.
pub const FOREIGN_XDP: u8 = 6;
/// Redis cannot be reached, its name cannot be resolved, or it refuses the daemon's user.
pub const REDIS: u8 = 7;
/// Redis is too old.
pub const REDIS_OLD: u8 = 8;
/// Nothing listens on Redis's port.
pub const NO_LISTENER: u8 = 9;
/// A size that cannot be used.
pub const SIZE: u8 = 10;
/// Boosted already, by whatever boost, or a boost or detach is under way.
pub const ALREADY_BOOSTED: u8 = 11;
/// There is no boost, or not any more.
pub const NOT_BOOSTED: u8 = 12;
/// The kernel refused a program.
pub const REFUSED: u8 = 13;
/// Detach: connections still need translation, or SETs that were answered are not in Redis. Only a daemon leaves with
/// the last one.
pub const STILL_NEEDED: u8 = 14;
/// What is at work is of another version or build.
pub const OTHER_VERSION: u8 = 15;
/// Boost and doctor: nothing would be answered. Doctor: bytes would be copied.
pub const ANSWERS_NOTHING: u8 = 16;
/// Trace: somebody else traces already.
pub const ALREADY_TRACED: u8 = 17;
/// The program with lab, bench, check and demo is not there.
pub const NO_TOOLS: u8 = 18;
/// Boost, serve, node: an address cannot be listened on.
pub const ADDRESS: u8 = 19;
/// Node: another process has the store open.
pub const STORE_IN_USE: u8 = 20;
/// Node: no store is there, or it does not open.
pub const NO_STORE: u8 = 21;
/// Node: no node has the store open.
pub const NO_NODE: u8 = 22;
/// Kv: the node cannot be reached, or does not take the connection.
pub const NODE_UNREACHABLE: u8 = 23;
/// Kv: there is no such key or version.
pub const NO_KEY: u8 = 24;
/// Kv: the key has another version than the condition names.
pub const CONDITION: u8 = 25;
/// Kv: the node refuses.
pub const NODE_REFUSES: u8 = 26;
/// Kv: it is not known whether that was done.
pub const NOT_KNOWN: u8 = 27;
/// Kv, node status: the node does not let this host in, or has not proved itself.
pub const NOT_LET_IN: u8 = 28;
/// Boost, node, kv: a file of hosts, secrets or a token cannot be used.
pub const SECRETS_FILE: u8 = 29;
/// Journal check, show: a segment ends before its file does.
pub const JOURNAL_DAMAGED: u8 = 30;
/// Lab vm: QEMU, or a kernel, cannot be had.
pub const NO_MACHINE: u8 = 31;
/// Boost: a signal came before it was at work; its number is added.
pub const BY_SIGNAL: u8 = 128;

/// Codes with which `erb boost` is not started again by its unit: nothing but other words in its file, another unit or
/// another kernel makes it end otherwise, and each of them comes with a start by hand.
pub const BOOST_FOR_GOOD: &[u8] = &[USAGE, PRIVILEGE, KERNEL, SIZE, OTHER_VERSION];

/// Codes after which its unit starts it again: what is missing may come, and what is in the way may go, by what others
/// do.
pub const BOOST_MAY_PASS: &[u8] = &[
    // A disk that was full, a call that the kernel had no memory for.
    FAILED,
    // A device that is plugged in or made later, or has another program for now.
    DEVICE,
    FOREIGN_XDP,
    // A Redis that starts later, is upgraded, or is given other settings; a name server that was silent.
    REDIS,
    REDIS_OLD,
    NO_LISTENER,
    ANSWERS_NOTHING,
    // A daemon that leaves.
    ALREADY_BOOSTED,
    NOT_BOOSTED,
    // The kernel says so too when it is short of memory.
    REFUSED,
    // An address that is another's for now, a token that another program writes.
    ADDRESS,
    SECRETS_FILE,
];

/// The same of `erb node start` and its unit: a store that needs a repair and hosts that may not be read need a person.
pub const NODE_FOR_GOOD: &[u8] = &[USAGE, NO_STORE, SECRETS_FILE];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Those that a unit names.
    fn not_restarted(unit: &str) -> BTreeSet<u8> {
        let lines = unit
            .lines()
            .filter_map(|line| line.strip_prefix("RestartPreventExitStatus="));
        let codes = lines.flat_map(str::split_whitespace);
        codes.map(|code| code.parse().expect("a code")).collect()
    }

    /// All codes that `erb --help` explains, but 0.
    fn explained() -> BTreeSet<u8> {
        let first = HELP.lines().filter_map(|line| {
            let word = line.strip_prefix("  ")?.split(' ').next()?;
            word.parse().ok()
        });
        first.filter(|code| *code != 0).collect()
    }

    #[test]
    fn the_units_give_up_only_for_what_no_time_cures() {
        let boost = include_str!("../../../../dist/systemd/erb-boost@.service");
        assert_eq!(
            not_restarted(boost),
            BOOST_FOR_GOOD.iter().copied().collect()
        );
        let node = include_str!("../../../../dist/systemd/erb-node@.service");
        assert_eq!(not_restarted(node), NODE_FOR_GOOD.iter().copied().collect());
    }

    #[test]
    fn every_code_of_a_boost_may_pass_or_does_not() {
        // Of other commands alone.
        let others = STILL_NEEDED..=STILL_NEEDED;
        let others = others.chain(ALREADY_TRACED..=NO_TOOLS);
        let others: BTreeSet<u8> = others
            .chain(STORE_IN_USE..=NOT_LET_IN)
            .chain(JOURNAL_DAMAGED..=NO_MACHINE)
            .collect();
        let sorted = |codes: &[u8]| codes.iter().copied().collect::<BTreeSet<u8>>();
        let (for_good, may_pass) = (sorted(BOOST_FOR_GOOD), sorted(BOOST_MAY_PASS));
        assert!(for_good.is_disjoint(&may_pass));
        let of_boost: BTreeSet<u8> = explained().difference(&others).copied().collect();
        assert_eq!(
            for_good.union(&may_pass).copied().collect::<BTreeSet<u8>>(),
            of_boost
        );
        assert!(others.is_subset(&explained()));
    }
}
