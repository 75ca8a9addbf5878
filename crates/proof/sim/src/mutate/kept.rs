// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes in how each answered write is handed to the kernel module.

use super::{Change, Edit, Mutation, Way};

mutations! {
    Scenario,
    "keep-unreserved", "no write has an LSN for which the module has no room", "kept-refused",
        [("splice/absorb.h", "\tif (!reason && keeps)\n\t\treason = handler_keep_reserve(w);\n", "")];
    "keep-shut-ignored", "no write is answered while the module takes none", "kept-refused",
        [("redis/keep.h", "KEEP_FULL ? STAT_ABSORB_FULL : STAT_ABSORB_SHUT;", "KEEP_FULL ? STAT_ABSORB_FULL : 0;")];
    "keep-full-ignored", "nor while it has no room", "kept-refused",
        [("redis/keep.h", "KEEP_FULL ? STAT_ABSORB_FULL : STAT_ABSORB_SHUT;", "KEEP_FULL ? 0 : STAT_ABSORB_SHUT;")];
    "keep-unpushed", "what is answered the module has", "kept-all",
        [("redis/absorb.h", "\tif (keeps)\n\t\tkeep_push(w, log);\n", "")];
    "keep-twice", "and once", "kept-all",
        [("redis/keep.h", "\t\terb_io_push(log->bytes + head, bytes);", "\t\terb_io_push(log->bytes + head, bytes), erb_io_push(log->bytes + head, bytes);")];
    "keep-unnumbered", "and with its LSN", "kept-all",
        [("redis/absorb.h", "\tlsn = absorb_order();\n\t((struct log_record", "\tif (keeps)\n\t\tkeep_push(w, log);\n\tlsn = absorb_order();\n\t((struct log_record"),
         ("redis/absorb.h", "->lsn = lsn;\n\tif (keeps)\n\t\tkeep_push(w, log);\n", "->lsn = lsn;\n")];
    "keep-whatever-sink", "where the daemon keeps all the module is not asked", "kept-changed",
        [("splice/absorb.h", "\tif (!reason && keeps)\n\t\treason", "\tif (!reason)\n\t\treason")];
}
