// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kills are counted over several runs.

use std::path::PathBuf;

/// Kills behind which a check has found nothing, in this run and those before it.
#[derive(Default)]
pub struct Kills {
    file: Option<PathBuf>,
    pub done: u64,
    /// Acknowledged writes that were there.
    pub writes: u64,
}

impl Kills {
    /// With what earlier runs have counted in the file that `ERB_KILLS_FILE` names.
    pub fn read() -> Self {
        let file = std::env::var_os("ERB_KILLS_FILE").map(PathBuf::from);
        let text = file
            .as_ref()
            .and_then(|it| std::fs::read_to_string(it).ok());
        let text = text.unwrap_or_default();
        let words = text.split_whitespace();
        let mut numbers = words.filter_map(|word| word.parse().ok());
        Self {
            file,
            done: numbers.next().unwrap_or(0),
            writes: numbers.next().unwrap_or(0),
        }
    }

    /// Behind one more nothing was found, and so many writes more were there.
    pub fn count(&mut self, writes: u64) {
        self.done += 1;
        self.writes += writes;
        if let Some(file) = &self.file {
            let counted = format!("{} kills, {} acknowledged writes\n", self.done, self.writes);
            // A run may be ended at any moment.
            let next = file.with_extension("next");
            let written = std::fs::write(&next, counted);
            let renamed = written.and_then(|()| std::fs::rename(&next, file));
            renamed.expect("it can be written");
        }
    }
}
