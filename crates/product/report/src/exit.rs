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
  7   Redis cannot be reached or refuses the daemon's user, or its password file cannot be used
  8   Redis is older than 7.0
  9   nothing listens on Redis's port in this network namespace
  10  a size that cannot be used
  11  already boosted, or a detach is under way
  12  nothing is boosted
  13  the kernel refused a program
  14  detach: connections still need translation; a daemon leaves with the last one, without a
      daemon nobody does: detach again
  15  what is at work is of another version or build of ERB
  16  doctor: a boost would be made, but answer nothing; with --file: bytes would be copied
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
  31  lab vm: QEMU, a kernel or its headers cannot be had";

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
/// Redis cannot be reached, or refuses the daemon's user.
pub const REDIS: u8 = 7;
/// Redis is too old.
pub const REDIS_OLD: u8 = 8;
/// Nothing listens on Redis's port.
pub const NO_LISTENER: u8 = 9;
/// A size that cannot be used.
pub const SIZE: u8 = 10;
/// Boosted already, or a detach is under way.
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
/// Doctor: nothing would be answered, or bytes would be copied.
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
