// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What systemd is told of a daemon that it has started, as in sd_notify(3). Nobody else hears it.

use sd_notify::NotifyState;

fn tell(state: NotifyState) {
    // Without systemd there is nobody to tell; with it, one who is not heard goes on working.
    let _ = sd_notify::notify(false, &[state]);
}

/// It drives the data path from now on.
pub(crate) fn is_ready() {
    tell(NotifyState::Ready);
}

/// Its loop has come round.
pub(crate) fn turns() {
    tell(NotifyState::Watchdog);
}

/// It detaches.
pub(crate) fn stops() {
    tell(NotifyState::Stopping);
}
