// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations follow from seed and number.

use erb_sim::client::workload::Workload;

#[test]
fn an_operation_follows_from_its_number() {
    let workload = Workload::new(erb_sim::profile::CALM.client, 7);
    assert_eq!(workload.operation(3, 4), workload.operation(3, 4));
    let different = (0..50).any(|n| workload.operation(3, n) != workload.operation(4, n));
    assert!(different);
}
