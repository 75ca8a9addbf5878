// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx over a folder of static files: what `erb serve` is compared with.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setpgid};
use procfs::process::Process;

use crate::servers;

/// Debian 13's, by this name instead of a path.
pub const OF_DEBIAN: &str = "debian";
/// It listens, and its worker runs, after a fraction of this.
const START_TIME: Duration = Duration::from_secs(10);
/// It ends at once when told so.
const STOP_TIME: Duration = Duration::from_secs(3);

/// How nginx keeps files open between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFiles {
    /// Opened and closed by each request, which is its default.
    Each,
    /// `open_file_cache`: a name stands for the file that it led to for up to a minute.
    Kept,
}

/// A running nginx with one worker; ended when dropped.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
}

/// The program that is meant: a path, a name in PATH, or [`OF_DEBIAN`], which is fetched unless it is there.
///
/// # Errors
/// With what to do, if there is none.
pub fn program(wanted: &str) -> Result<PathBuf> {
    if wanted == OF_DEBIAN {
        return servers::nginx();
    }
    match Command::new(wanted)
        .arg("-v")
        .stderr(Stdio::null())
        .status()
    {
        Ok(status) if status.success() => Ok(wanted.into()),
        Ok(status) => bail!("{wanted} -v failed ({status}): give an nginx that runs here"),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!(
            "no {wanted} here: install it (apt-get install nginx-light), name one by --nginx PATH, or let \
             --nginx {OF_DEBIAN} fetch Debian's, which is unpacked beside this program and not installed"
        ),
        Err(error) => Err(error).with_context(|| format!("cannot run {wanted}")),
    }
}

impl Nginx {
    /// Starts it by `command`, which is a bare one for the program. It serves `root` at `address`; when this
    /// returns, it listens and its worker runs. What it writes goes to the folder `dir`.
    ///
    /// # Errors
    /// If it does not start, with what it said.
    pub fn start(
        mut command: Command,
        dir: &Path,
        root: &Path,
        address: SocketAddr,
        files: OpenFiles,
    ) -> Result<Self> {
        let conf = dir.join("nginx.conf");
        let text = configuration(dir, root, address, files);
        fs::write(&conf, text).with_context(|| format!("cannot write {}", conf.display()))?;
        let said = dir.join("said");
        let log = fs::File::create(&said)?;
        command.arg("-p").arg(dir).arg("-c").arg(&conf);
        command.args(["-e", "stderr"]);
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        // SAFETY: both are system calls that take no lock and allocate nothing.
        unsafe {
            command.pre_exec(|| {
                // A new group: Ctrl-C reaches the caller first, which then ends nginx.
                setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
                prctl::set_pdeathsig(Signal::SIGTERM).map_err(Into::into)
            });
        }
        let child = command.spawn().context("cannot run nginx")?;
        let mut nginx = Self { child };
        nginx.wait_until_ready(&said)?;
        Ok(nginx)
    }

    /// Its processes: the master and its worker.
    ///
    /// # Errors
    /// If it has ended.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let master = self.child.id();
        let process = Process::new(i32::try_from(master)?)?;
        let mut pids = vec![master];
        pids.extend(process.task_main_thread()?.children()?);
        Ok(pids)
    }

    fn wait_until_ready(&mut self, said: &Path) -> Result<()> {
        let end = Instant::now() + START_TIME;
        loop {
            // The worker is forked when the socket listens.
            if self.pids().is_ok_and(|pids| pids.len() > 1) {
                return Ok(());
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > end {
                let said = fs::read_to_string(said).unwrap_or_default();
                bail!("nginx did not start ({ended:?}); it said:\n{said}");
            }
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The master ends its worker.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let end = Instant::now() + STOP_TIME;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As its users tune it for static files, with one worker and no log.
fn configuration(dir: &Path, root: &Path, address: SocketAddr, files: OpenFiles) -> String {
    let dir = dir.display();
    // Workers of root would become nobody, who may not read the folder.
    let user = if nix::unistd::geteuid().is_root() {
        "user root;\n"
    } else {
        ""
    };
    let kept = match files {
        OpenFiles::Each => "",
        OpenFiles::Kept => "open_file_cache max=1000 inactive=60s;\nopen_file_cache_valid 60s;\n",
    };
    format!(
        "{user}daemon off;\nworker_processes 1;\npid {dir}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log off;\nsendfile on;\ntcp_nopush on;\ntcp_nodelay on;\n{kept}\
         keepalive_requests 1000000000;\nkeepalive_timeout 60s;\n\
         types {{ text/html html; text/plain txt; }}\ndefault_type application/octet-stream;\n\
         client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\nfastcgi_temp_path {dir}/fastcgi;\n\
         uwsgi_temp_path {dir}/uwsgi;\nscgi_temp_path {dir}/scgi;\n\
         server {{ listen {address} backlog=4096; root {}; index index.html; }}\n\
         }}\n",
        root.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_no_nginx_is_told_how_to_get_one() {
        let error = program("no-such-nginx").unwrap_err().to_string();
        assert!(
            error.contains("apt-get install") && error.contains("--nginx debian"),
            "{error}"
        );
    }

    #[test]
    fn the_configuration_has_the_folder_and_the_address() {
        let address = "10.0.0.1:80".parse().unwrap();
        let text = configuration(Path::new("/d"), Path::new("/r"), address, OpenFiles::Kept);
        for words in [
            "listen 10.0.0.1:80 ",
            "root /r;",
            "open_file_cache max",
            "sendfile on",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let text = configuration(Path::new("/d"), Path::new("/r"), address, OpenFiles::Each);
        assert!(!text.contains("open_file_cache"));
    }
}
