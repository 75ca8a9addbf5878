// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A boosted lab with a password, and what ERB counts there.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use erb_check::net::Conn;
use erb_lab::{Boost, Erb, Lab, LabConfig, LabName, LabState, Mode, ServerProgram, Serves, netns};

/// Name of the lab.
const LAB: &str = "hostile";
/// Redis's password in it: there are clients that have not shown it.
pub const PASSWORD: &str = "honest";
/// Where lab and daemon read the password.
const PASSWORD_VARIABLE: &str = "ERB_REDIS_PASSWORD";
/// Redis's own limit is 10,000; a crowd is larger.
const MAX_CLIENTS: &str = "maxclients=40000";
/// An honest client that waits longer is stuck.
pub const STALL: Duration = Duration::from_secs(10);

/// A lab, removed when dropped.
pub struct Stage<'a> {
    lab: Option<Lab>,
    erb: &'a Erb,
}

impl<'a> Stage<'a> {
    /// Makes the lab; it serves when this returns.
    pub fn up(erb: &'a Erb) -> Result<Self> {
        // SAFETY: no other thread of this process reads or writes the environment: those of an
        // earlier lab have ended, and the next begin after this.
        unsafe { std::env::set_var(PASSWORD_VARIABLE, PASSWORD) };
        let name: LabName = LAB.parse()?;
        // The lock is ours: a lab of this name was left by a run that was killed.
        erb_lab::down(&name, erb).context("cannot remove an earlier run's lab")?;
        let settings = [
            format!("requirepass={PASSWORD}"),
            MAX_CLIENTS.to_owned(),
            "appendonly=no".to_owned(),
        ];
        let config = LabConfig {
            name,
            direct: true,
            mode: Mode::Read,
            redis_port: 6379,
            redis_args: settings
                .iter()
                .map(|setting| setting.parse())
                .collect::<Result<_>>()?,
            server: Serves::Redis(ServerProgram::Redis7),
        };
        let lab = Lab::up(&config, erb).context("cannot make the lab")?;
        let stage = Self {
            lab: Some(lab),
            erb,
        };
        stage.boost()?.wait_until_serving()?;
        Ok(stage)
    }

    fn lab(&self) -> Result<&Lab> {
        self.lab.as_ref().context("the lab is down")
    }

    /// What the lab is made of.
    pub fn state(&self) -> Result<&LabState> {
        self.lab().map(Lab::state)
    }

    /// Redis's address.
    pub fn address(&self) -> Result<SocketAddr> {
        let state = self.state()?;
        Ok((state.server.ipv4, state.redis_port).into())
    }

    /// A connection of an honest client, authenticated.
    pub fn client(&self) -> Result<Conn> {
        let to = self.address()?;
        let namespace = self.state()?.client.namespace.clone();
        let mut conn = netns::run_in(&namespace, move || Conn::connect(to, STALL))?;
        let reply = conn.call(&["AUTH", PASSWORD])?;
        ensure!(reply == b"+OK\r\n", "AUTH was answered {reply:?}");
        Ok(conn)
    }

    fn boost(&self) -> Result<Boost> {
        self.state().map(|lab| self.erb.boost_of(lab))
    }

    /// GETs that ERB has answered so far.
    pub fn fast_gets(&self) -> Result<u64> {
        self.boost()?.counter("FAST_GET")
    }

    /// Broken invariants that the data path has counted: none, or ERB is wrong.
    pub fn broken_invariants(&self) -> Result<u64> {
        self.boost()?.counter("INVARIANT")
    }

    /// Removes it.
    pub fn down(mut self) -> Result<()> {
        match self.lab.take() {
            Some(lab) => lab.down(self.erb).map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let Some(lab) = self.lab.take() else { return };
        if let Err(error) = lab.down(self.erb) {
            eprintln!("cannot remove the lab: {error:#}; `erb lab down --name {LAB}` tries again");
        }
    }
}
