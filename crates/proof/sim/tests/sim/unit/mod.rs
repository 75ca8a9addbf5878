// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Single parts of the simulator, in modules that are named as theirs are.

mod campaign {
    mod coverage;
    mod shrink;
}
mod check {
    mod cache;
    mod histories;
    mod maps;
    mod places;
    mod quiet;
    mod reads;
    mod stream;
    mod wire;
}
mod client {
    mod resp;
    mod ticks;
    mod workload;
}
mod coverage;
mod exchange_run;
mod link {
    mod mangle;
}
mod mutate {
    mod judged;
    mod lists;
}
mod profile;
mod scenario;
mod server {
    mod pipe;
}
mod time;
