// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's log says: its own verdict, and what its kernel complains of.
//!
//! The kernel's lines go to the same console as what programs print, so one may stand behind a piece of the other. They
//! are known by the time in brackets. A program's word `BUG` is no complaint of the kernel.

/// What of a kernel's line is a complaint, at the beginning of a word. A failed allocation that a check asks for is told in other
/// words, and none.
const COMPLAINTS: [&str; 33] = [
    "WARNING:",
    "BUG:",
    "BUG ",
    "kernel BUG at",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "Unable to handle kernel",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "INFO: rcu",
    "INFO: task",
    "INFO: trying to register",
    "UBSAN:",
    "KFENCE:",
    "new suspected memory leaks",
    "unreferenced object",
    "ODEBUG:",
    "turning off the locking correctness validator",
    "refcount_t:",
    "list_add corruption",
    "list_del corruption",
    "Bad page state",
    "page allocation failure",
    // `page_poison=1` says so.
    "pagealloc:",
    "unregister_netdevice: waiting",
    "ref_tracker:",
    "cannot create duplicate filename",
    "Out of memory:",
    // What is still in a slab when its owner goes: a leak.
    "Objects remaining in",
    "still has objects",
    "not freed",
];

/// How a guest ends its verdict: `guest: N failed`.
const VERDICT: (&str, &str) = ("guest: ", " failed");
/// How a guest says that a check failed.
const FAILED: &str = "guest: FAILED";
/// How a guest says that what was asked for by a part of its name is there.
const CHOSEN: &str = "guest: chosen";

/// What a log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Checks that failed by the guest's own word; none if it did not come to that.
    pub failed: Option<u32>,
    /// Lines in which it says which.
    pub failures: Vec<String>,
    /// Lines in which its kernel complains.
    pub complaints: Vec<String>,
}

impl Verdict {
    /// Whether all is as it should be.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.failed == Some(0) && self.failures.is_empty() && self.complaints.is_empty()
    }

    /// Without complaints that have one of these words.
    #[must_use]
    pub fn but(mut self, expected: &[&str]) -> Self {
        let is_other = |line: &String| !expected.iter().any(|words| line.contains(words));
        self.complaints.retain(is_other);
        self
    }

    /// What is wrong, line by line.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut all = self.failures.clone();
        match self.failed {
            None => all.push("the guest did not come to its end".to_owned()),
            Some(count) if count > 0 && all.is_empty() => all.push(format!("{count} failed")),
            Some(_) => {}
        }
        let kernel = self.complaints.iter().map(|line| format!("kernel: {line}"));
        all.extend(kernel);
        all
    }
}

/// Whether anything that was tried has the part of a name that was asked for.
#[must_use]
pub fn has_chosen(log: &str) -> bool {
    log.lines().any(|line| line == CHOSEN)
}

/// Judges a log.
#[must_use]
pub fn judge(log: &str) -> Verdict {
    let kernel = log.lines().filter_map(of_kernel);
    let complaint = |line: &&str| COMPLAINTS.iter().any(|words| has(line, words));
    Verdict {
        failed: log.lines().rev().find_map(verdict),
        failures: owned(log.lines().filter(|line| line.starts_with(FAILED))),
        complaints: owned(kernel.filter(complaint)),
    }
}

/// `DEBUG` is no `BUG`.
fn has(line: &str, words: &str) -> bool {
    let mut all = line.match_indices(words);
    all.any(|(at, _)| !line[..at].ends_with(char::is_alphanumeric))
}

fn owned<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    lines.map(str::to_owned).collect()
}

/// N of `guest: N failed`, whatever is said behind it.
fn verdict(line: &str) -> Option<u32> {
    let (number, _) = line.strip_prefix(VERDICT.0)?.split_once(VERDICT.1)?;
    number.parse().ok()
}

/// What the kernel says in this line, from its time on.
fn of_kernel(line: &str) -> Option<&str> {
    let mut at = 0;
    while let Some(begin) = line[at..].find('[') {
        let from = at + begin;
        let inside = line[from + 1..].split_once(']').map(|(inside, _)| inside);
        if inside.is_some_and(is_time) {
            return Some(&line[from..]);
        }
        at = from + 1;
    }
    None
}

/// `   12.345678`; where the processor or thread is shown, that stands in a bracket of its own behind it.
fn is_time(inside: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts = inside.trim_start().split_once('.');
    parts.is_some_and(|(seconds, rest)| digits(seconds) && rest.len() == 6 && digits(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
[    0.412345] kfence: initialized - using 2097152 bytes for 255 objects\n\
[    0.512345] kmemleak: Kernel memory leak detector initialized (mem pool available: 14837)\n\
[    0.612345] This is a DEBUG kernel: DEBUG is on\n\
guest: Linux 6.12.118+deb13-amd64\n\
--- load\n\
loaded   erb_xdp 467000 instructions verified\n\
a program says BUG: and WARNING: of itself\n\
guest: 0 failed, 41 s\n\
[   42.000000] reboot: Power down\n";

    #[test]
    fn a_quiet_log_is_good() {
        let verdict = judge(GOOD);
        assert!(verdict.is_good(), "{verdict:?}");
        assert_eq!(verdict.problems(), Vec::<String>::new());
    }

    #[test]
    fn each_complaint_of_the_kernel_is_found() {
        for line in [
            "[   12.345678] WARNING: CPU: 1 PID: 77 at net/core/dev.c:4242 x+0x1/0x2",
            "[   12.345678] ------------[ cut here ]------------\n[   12.345679] kernel BUG at mm/slub.c:1!",
            "[   12.345678] BUG: KFENCE: use-after-free read in erb_io_push+0x10/0x20 [erb_io]",
            "[   12.345678] BUG kmalloc-64 (Tainted: G           OE ): Right Redzone overwritten",
            "[   12.345678] Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "[   12.345678] pagealloc: memory corruption",
            "[   12.345678] pagealloc: single bit error",
            "[   12.345678] unregister_netdevice: waiting for far to become free. Usage count = 2",
            "[   12.345678] ref_tracker: far@ffff88800 has 1/1 users at",
            "[   12.345678] sysfs: cannot create duplicate filename '/class/misc/erb_io'",
            "[   12.345678] Out of memory: Killed process 77 (redis-server) total-vm:1kB",
            "[  242.345678] INFO: task rmmod:99 blocked for more than 120 seconds.",
            "[   12.345678] BUG erb_fifo (Not tainted): Objects remaining in erb_fifo on __kmem_cache_shutdown()",
            "[   12.345678] kmem_cache_destroy erb_fifo: Slab cache still has objects when called from x",
            "half a line of a program[   12.345678] WARNING: suspicious RCU usage",
            "[   12.345678][  T99] BUG: unable to handle page fault for address: 0000000000000010",
            "[    1.000000] Kernel panic - not syncing: Attempted to kill init!",
        ] {
            let verdict = judge(&format!("{line}\n{GOOD}"));
            assert!(!verdict.is_good(), "{line}");
            assert_eq!(verdict.complaints.len(), 1, "{verdict:?}");
        }
    }

    #[test]
    fn each_complaint_of_a_kernel_that_looks_for_mistakes_is_found() {
        let complaints = include_str!("../recorded/complaints");
        for line in complaints.lines().filter(|line| !line.starts_with('#')) {
            let verdict = judge(&format!("[   12.345678] {line}\n{GOOD}"));
            assert_eq!(verdict.complaints.len(), 1, "{line}");
        }
    }

    #[test]
    fn a_guest_says_that_it_knows_what_was_asked_for() {
        assert!(!has_chosen(GOOD));
        assert!(has_chosen(&format!("guest: chosen\n{GOOD}")));
    }

    #[test]
    fn a_guest_that_fails_or_does_not_end_is_not_good() {
        let verdict = judge("guest: FAILED (1): load\nguest: 1 failed\n");
        assert_eq!(verdict.problems(), ["guest: FAILED (1): load"]);
        assert!(!verdict.is_good());
        let verdict = judge("guest: Linux 6.12\n--- load\n");
        assert_eq!(verdict.problems(), ["the guest did not come to its end"]);
        // Its last word counts, and a failure is not made good by it.
        assert!(!judge("guest: FAILED (1): load\nguest: 0 failed\n").is_good());
        assert_eq!(judge("guest: 2 failed\n").problems(), ["2 failed"]);
    }

    #[test]
    fn what_is_expected_is_no_complaint() {
        let line =
            "[   12.345678] WARNING: CPU: 1 PID: 77 at fs/dax.c:397 dax_disassociate_entry+0x1/0x2";
        let verdict = judge(&format!("{line}\n{GOOD}"));
        assert!(!verdict.clone().but(&["fs/other.c"]).is_good());
        assert!(verdict.but(&["fs/dax.c"]).is_good());
    }
}
