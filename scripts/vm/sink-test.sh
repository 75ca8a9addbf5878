#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# sink-test.sh - `erb boost --journal-sink kmod` on another kernel than the one that runs: is each SET that was answered in a
# segment that the kernel module wrote, whatever becomes of daemon, disk and sink (docs/internals/module.md)?
#
#   scripts/vm/sink-test.sh [SERIES...]
#
# SERIES, kernels, headers, guest and needs as in kmod-test.sh; and redis-server.
#
#   ERB_SETS=500     SETs of each of four clients, each time
#   ERB_CYCLES=3     times that the sink is changed and the module removed
#   ERB_ONLY=NAME    of the checks of a boost only those with NAME in theirs
#   ERB_PROFILE=dev  of Cargo's build; release if nothing is said
#   ERB_MEMORY, ERB_SLOW, ERB_WORDS    as in kmod-test.sh
#
# Exit code 0: all checks passed on all kernels. What they said is in target/vm/sink-SERIES.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh
# shellcheck source=scripts/vm/headers.sh
. scripts/vm/headers.sh

sink_run() {
	local image=$1 series=$2
	vm_kernel "$image"
	vm_initrd "$image"
	say "starting $image, for at most $GUEST_SECONDS_MAX s"
	vm_run "$image" scripts/vm/sink-guest.sh "${ERB_MEMORY:-1500M}" "erb_sets=${ERB_SETS:-500} erb_cycles=${ERB_CYCLES:-3} \
erb_only=${ERB_ONLY:-} erb_slow=${ERB_SLOW:-1} kfence.sample_interval=1 slub_debug=FZPU page_poison=1 ${ERB_WORDS:-}" -M q35 || say "the guest did not end by itself"
	cp "$vm/log" "$vm/sink-$series.log"
	grep -q '^guest: 0 failed' "$vm/log"
}

setup_root
setup_rust run
vm_packages e2fsprogs iproute2 pahole python3 redis-server
profile=${ERB_PROFILE:-release}
cargo build --profile "$profile" --locked --package erb
cp "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/erb" "$vm/"
vm_suites "${SUITES[@]}"
[ $# -gt 0 ] || set -- 6.12
failed=()
for series in "$@"; do
	image=$(headers_newest "$series")
	[ -n "$image" ] || die "no kernel of $series with headers that this machine can use in ${SUITES[*]}"
	kmod_build "$image"
	sink_run "$image" "$series" || failed+=("$series ($image)")
done
[ ${#failed[@]} -eq 0 ] || die "not all is as it should be on ${failed[*]}: see $vm/sink-*.log"
say "all checks passed"
