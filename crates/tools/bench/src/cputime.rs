// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processor time of threads, and pinning them.

use std::fs;

use anyhow::{Context, Result};
use erb_lab::process;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};
use procfs::ProcError;
use procfs::process::{Process, Task};

/// Nanoseconds that all threads of a process (or one kernel thread) have run.
///
/// From /proc/PID/task/*/schedstat; a running thread's figure is at most one tick old.
pub fn of_process(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for thread in threads(pid)? {
        match thread.schedstat() {
            Ok(schedstat) => sum += schedstat.sum_exec_runtime,
            // A thread may end between listing and reading; its share is then lost, and small.
            Err(ProcError::NotFound(_)) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("no schedstat of a thread of {pid}"));
            }
        }
    }
    Ok(sum)
}

/// Sum over several processes, in nanoseconds.
pub fn of_processes(pids: &[u32]) -> Result<u64> {
    pids.iter().map(|&pid| of_process(pid)).sum()
}

/// Nanoseconds that the threads of a process with this name have run; 0: it has none.
pub fn of_thread(pid: u32, name: &str) -> Result<u64> {
    let mut sum = 0;
    for thread in threads(pid)? {
        // One that has ended meanwhile is none.
        if thread.stat().is_ok_and(|stat| stat.comm == name) {
            sum += thread.schedstat().map_or(0, |it| it.sum_exec_runtime);
        }
    }
    Ok(sum)
}

/// Threads of others on a processor; where they may run is as it was when this is dropped.
#[derive(Debug)]
pub struct Pinned(Vec<(u32, CpuSet)>);

impl Pinned {
    /// These processes, or kernel threads.
    pub fn of(pids: &[u32], core: usize) -> Result<Self> {
        let mut pinned = Self(Vec::new());
        for &pid in pids {
            let before = sched_getaffinity(Pid::from_raw(pid.try_into()?));
            let before = before.with_context(|| format!("no processors of process {pid}"))?;
            pinned.0.push((pid, before));
            pin(pid, core)?;
        }
        Ok(pinned)
    }

    /// Who they are.
    pub fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|(pid, _)| *pid).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (pid, before) in &self.0 {
            // It may be gone.
            let _ = sched_setaffinity(Pid::from_raw(*pid as i32), before);
        }
    }
}

/// Gives the calling thread a processor, and no other thread.
pub fn pin_this(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core)
        .with_context(|| format!("no processor {core}"))?;
    sched_setaffinity(Pid::from_raw(0), &set)
        .with_context(|| format!("could not pin a thread to processor {core}"))
}

/// Nanoseconds for which a processor was not idle since boot, to the clock tick (10 ms).
///
/// From /proc/stat: user, nice, system, irq, softirq; neither idle nor iowait nor steal. Read here,
/// because procfs counts lines: with a processor offline it would give another one's.
pub fn of_core(core: usize) -> Result<u64> {
    let text = fs::read_to_string("/proc/stat").context("could not read /proc/stat")?;
    let ticks = parse_stat(&text, core).with_context(|| format!("/proc/stat has no cpu{core}"))?;
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")? as u64;
    Ok(ticks * (1_000_000_000 / per_second))
}

fn parse_stat(text: &str, core: usize) -> Option<u64> {
    let label = format!("cpu{core}");
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(&label))?;
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map_while(|field| field.parse().ok())
        .collect();
    let [user, nice, system, _idle, _iowait, irq, softirq] = *fields.first_chunk()?;
    Some(user + nice + system + irq + softirq)
}

/// Pins all threads of a process to one processor; threads it starts later inherit that.
pub fn pin(pid: u32, core: usize) -> Result<()> {
    pin_to(pid, &[core])
}

/// The same to several processors.
pub fn pin_to(pid: u32, cores: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core)
            .with_context(|| format!("no processor {core}"))?;
    }
    for thread in threads(pid)? {
        let tid = thread.tid;
        sched_setaffinity(Pid::from_raw(tid), &set)
            .with_context(|| format!("could not pin thread {tid} of {pid} to {cores:?}"))?;
    }
    Ok(())
}

/// The kernel thread of threaded NAPI for a device whose name is unique on this machine.
pub fn napi_thread(dev: &str) -> Result<u32> {
    let prefix = format!("napi/{dev}-");
    let threads = process::named(&prefix)?;
    threads.first().copied().with_context(|| {
        format!(
            "no kernel thread {prefix}*: {dev} has no threaded NAPI: the kernel is too old, or this is a \
             container that does not see this machine's processes"
        )
    })
}

fn threads(pid: u32) -> Result<impl Iterator<Item = Task>> {
    let process = Process::new(i32::try_from(pid)?);
    let threads = process.and_then(|process| process.tasks());
    let threads = threads
        .with_context(|| format!("could not list the threads of process {pid}; has it ended?"))?;
    Ok(threads.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_s_busy_time_leaves_out_idle_and_steal() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 2 4 1000 2000 8 16 3000 0 0\ncpu10 5 0 0 0 0 0 0 0\n";
        assert_eq!(parse_stat(text, 1), Some(31));
        assert_eq!(parse_stat(text, 10), Some(5));
        assert_eq!(parse_stat(text, 0), None);
    }

    #[test]
    fn own_time_grows_with_work() {
        let own = || of_process(std::process::id()).unwrap();
        let (before, mut number) = (own(), 1u64);
        erb_steady::wait_until(
            std::time::Duration::from_secs(10),
            "work is counted",
            || {
                let start = std::time::Instant::now();
                while start.elapsed().as_millis() < 30 {
                    number = std::hint::black_box(number.wrapping_mul(31));
                }
                own() > before
            },
        );
    }

    #[test]
    fn a_thread_is_found_by_its_name() {
        let (say, heard) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("a-journal".to_owned());
        let thread = thread.spawn(move || {
            // However long it takes until it has run for long enough: others may have the processors.
            while heard.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                std::hint::black_box(0);
            }
        });
        let thread = thread.unwrap();
        let pid = std::process::id();
        erb_steady::wait_until(std::time::Duration::from_secs(30), "it has run", || {
            of_thread(pid, "a-journal").unwrap() >= 10_000_000
        });
        assert_eq!(of_thread(pid, "a-journa").unwrap(), 0);
        say.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn pinned_threads_get_their_processors_back() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id() as i32);
        let before = sched_getaffinity(pid).unwrap();
        let core = (0..CpuSet::count()).find(|&core| before.is_set(core).unwrap());
        let pinned = Pinned::of(&[child.id()], core.unwrap()).unwrap();
        assert_eq!(pinned.pids(), [child.id()]);
        drop(pinned);
        assert_eq!(sched_getaffinity(pid).unwrap(), before);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn missing_process_is_an_error() {
        // Above the largest pid that Linux gives out (2^22).
        assert!(of_process(5_000_000).is_err());
    }
}
