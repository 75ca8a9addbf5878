// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of a run by kind and name.

use erb_sim::Fault;
use erb_sim::coverage::Coverage;

#[test]
fn counts_by_kind_and_name() {
    let mut coverage = Coverage::default();
    coverage.fault(Fault::Loss);
    coverage.verdict("xdp", 3);
    coverage.count("command", "get");
    coverage.count("command", "get");
    let all = coverage.all();
    assert_eq!(all[&("fault", "Loss".to_owned())], 1);
    assert_eq!(all[&("verdict", "xdp tx".to_owned())], 1);
    assert_eq!(all[&("command", "get".to_owned())], 2);
}
