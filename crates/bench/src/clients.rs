//! Runs of ordinary clients.
