// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every bound of the target, with its reason. A test may set smaller ones.

/// Bytes that a command moves at most, in either direction. MDTS says so (2^8 pages of 4 KiB).
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Bytes of a key at most.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of a key at most in the fields of a command, and by the standard's commands.
pub const SHORT_KEY_BYTES_MAX: usize = 16;
/// Rows of a batch or of a list of versions at most.
pub const ROWS_MAX: usize = 4096;
/// Asynchronous event requests that wait at most (AERL 3, which counts from 0).
pub const EVENT_REQUESTS_MAX: usize = 4;
/// Controller ids are 1 to this (Linux, `include/linux/nvme.h`: `NVME_CNTLID_MAX`).
pub const CONTROLLER_ID_MAX: u16 = 0xffef;

/// Bounds against peers that are hostile, broken or slow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Of these, connections that have not yet connected and authenticated.
    pub strangers: usize,
    /// For so long such a connection may take.
    pub stranger_us: u64,
    /// Controllers of discovery: nobody who asks for one has to be known.
    pub discoveries: usize,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// Commands of a queue under way.
    pub commands: usize,
    /// Bytes of data within a command capsule. Linux takes 8 KiB for granted on the admin queue
    /// (`include/linux/nvme-tcp.h`: `NVME_TCP_ADMIN_CCSZ`).
    pub in_capsule_bytes: usize,
    /// Bytes of data of one H2CData PDU. Linux refuses less than 4,096.
    pub h2c_data_bytes: usize,
    /// Bytes of data of one C2HData PDU, so that replies of a queue do not wait long for each other.
    pub c2h_data_bytes: usize,
    /// Bytes of all commands' data.
    pub pool_bytes: usize,
    /// Of these, a queue's share.
    pub queue_bytes: usize,
    /// Of these a host has at most what the others leave, divided by this: eight hosts that give nothing back leave a
    /// tenth of all.
    pub host_part: usize,
    /// Replies that are not sent yet. Above it nothing is read.
    pub unsent_bytes: usize,
    /// For so long a PDU, the data of an R2T, or the next [`c2h_data_bytes`](Self::c2h_data_bytes) of replies may take.
    pub stall_us: u64,
    /// For so long the same of replies, or the data of an R2T that nothing comes of, may take while another host waits
    /// for room that has less of it.
    pub pressed_us: u64,
    /// For so long the last words of a connection may wait.
    pub linger_us: u64,
    /// Controllers at a time, of them that have ended but whose commands still run too.
    pub controllers: usize,
    /// Listings of a moment that a controller holds open.
    pub listings: usize,
    /// For so long a listing stays open that nobody reads.
    pub listing_us: u64,
    /// Diffie-Hellman computations under way.
    pub computations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            strangers: 64,
            stranger_us: 5_000_000,
            discoveries: 64,
            io_queues: 16,
            commands: 128,
            in_capsule_bytes: 8192,
            h2c_data_bytes: 131_072,
            c2h_data_bytes: 131_072,
            pool_bytes: 256 << 20,
            queue_bytes: 4 << 20,
            host_part: 4,
            unsent_bytes: 1 << 20,
            stall_us: 10_000_000,
            pressed_us: 2_000_000,
            linger_us: 1_000_000,
            controllers: 1024,
            listings: 16,
            listing_us: 60_000_000,
            computations: 2,
        }
    }
}
