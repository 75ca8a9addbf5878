// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data path as the daemon drives it. What the production daemon does through mapped memory and
//! `bpf_prog_run` is done here on the simulator's maps; each access
//! but a look into a table is a point at which another CPU may run, or the daemon may die.

use std::cell::Cell;
use std::rc::Rc;

use erb_abi::{
    self as abi, Buffers, ControlBlock, ControlPlane, HeldPacket, Logs, Program, Table, Wanted,
};
use erb_redis::{DataPath, Error, Result};
use erb_sim_kernel::Datapath;

use crate::server::{Boost, IFINDEX};

/// Misses taken out of the ring at once at most, as in production.
const DRAIN_MAX: usize = 4096;

/// Copies of packets that wait, likewise; fewer, so that more than one turn is needed.
const HELD_MAX: usize = 8;

/// [`DataPath`] of a server.
pub struct Control {
    path: Datapath,
    ifindex: u32,
    absorbs: bool,
    die_in: Rc<Cell<Option<u32>>>,
}

impl Control {
    /// Drives these maps. The process dies when the counter has run down.
    #[must_use]
    pub const fn new(path: Datapath, die_in: Rc<Cell<Option<u32>>>) -> Self {
        Self {
            path,
            ifindex: IFINDEX,
            absorbs: false,
            die_in,
        }
    }

    /// With the log of writes that are answered, or without.
    #[must_use]
    pub const fn with_log(mut self, has_log: bool) -> Self {
        self.absorbs = has_log;
        self
    }

    fn step(&self) {
        Boost::step(&self.die_in);
    }
}

fn failed(error: i64) -> Error {
    Error::Failed(format!("error {error}").into())
}

impl ControlBlock for Control {
    fn control(&self) -> &abi::Control {
        self.step();
        ControlBlock::control(&self.path)
    }
}

impl ControlPlane for Control {
    type Error = Error;

    fn buffers(&self) -> &Buffers {
        self.path.buffers()
    }

    fn run(&self, program: Program) -> Result<u32> {
        self.step();
        let found = self.path.run_prog_on(program, self.ifindex);
        Ok(u32::try_from(found).unwrap_or(0))
    }

    fn run_on_frame(&self, program: Program, frame: &[u8]) -> Result<u32> {
        self.step();
        let found = self.path.run_prog_on_frame(program, self.ifindex, frame);
        Ok(u32::try_from(found).unwrap_or(0))
    }

    fn keys(&self, table: Table) -> Vec<Vec<u8>> {
        self.step();
        self.path.keys(table)
    }

    fn look_up(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.path.look_up(table, key).map_err(failed)
    }

    fn put(&self, table: Table, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.step();
        self.path.put(table, key, value).map_err(failed)
    }
}

impl DataPath for Control {
    fn wait_for_programs(&self) -> Result<()> {
        self.step();
        self.path.wait_for_programs();
        Ok(())
    }

    fn drain_misses(&mut self) -> Vec<Wanted> {
        self.step();
        self.path.take_misses(DRAIN_MAX)
    }

    fn drain_held(&mut self) -> Vec<HeldPacket> {
        self.step();
        self.path.take_held(HELD_MAX)
    }

    fn take_logs(&mut self) -> Option<Logs> {
        self.absorbs.then(|| self.path.logs())
    }

    fn run_on(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }
}
