#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# writes-test.sh - the power of a machine is cut whose Redis is boosted with --mode write-back, and its disk loses what it
# had in its cache: what is in Redis's log and in the journal afterwards (docs/internals/journal.md)?
#
#   scripts/vm/writes-test.sh [SERIES]
#
# SERIES is like 6.12, which it is if nothing is said; kernels, guest, disk and needs as in power-test.sh. Redis and its
# clients run in the guest; what these are told, they tell this machine at once.
#
#   ERB_CUTS=A,B     which cuts, in their order: alone, at-work, young, stopped, synced, resumed, all, kmod. For the last
#                    one the module is built, so the kernel is the newest that has headers which this machine can use
#   ERB_SECONDS=N    no cut is begun that would not end by then (400)
#   ERB_SEED=N       of all that is random
#   ERB_LYING=1      a disk that says it has flushed, and has not: passes if the test finds that out
#
# Exit code 0: what is promised held in each round. What was said is in target/vm/writes.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# For vm.sh.
# shellcheck disable=SC2034
GUEST_SECONDS_MAX=900
# shellcheck source=scripts/vm/vm.sh
. scripts/vm/vm.sh
# shellcheck source=scripts/vm/headers.sh
. scripts/vm/headers.sh

# writes_boot KERNEL COMMANDS-PORT SOCKET PID-FILE: by erb-node-vm, again and again.
writes_boot() {
	vm_run "$1" scripts/vm/writes-guest.sh 1500M no_timer_check -M q35 -pidfile "$4" \
		-netdev "user,id=net,ipv6=off,hostfwd=tcp:127.0.0.1:$2-:5001" -device virtio-net-pci,netdev=net,romfile= \
		-blockdev "node-name=disk,driver=raw,file.driver=nbd,file.server.type=unix,file.server.path=$3" \
		-device virtio-blk-pci,drive=disk
}

if [ "${1:-}" = --boot ]; then
	shift
	writes_boot "$@" >/dev/null 2>&1
	exit
fi

setup_root
setup_rust run
cuts=${ERB_CUTS:-at-work,resumed,stopped,synced,all}
module=
[[ ,$cuts, != *,kmod,* ]] || module=1
vm_packages e2fsprogs iproute2 redis-server ${module:+pahole}
cargo build --release --locked --package erb --package erb-node-vm
cp "${CARGO_TARGET_DIR:-target}"/release/{erb,erb-node-vm} "$vm/"
vm_suites "${SUITES[@]}"
series=${1:-6.12}
if [ -n "$module" ]; then
	kernel=$(headers_newest "$series")
else
	kernel=$(vm_newest "$series")
fi
[ -n "$kernel" ] || die "no linux-image-$series in ${SUITES[*]}"
[ -z "$module" ] || kmod_build "$kernel"
vm_kernel "$kernel"
vm_initrd "$kernel"
sockets=$(mktemp -d)
seed=${ERB_SEED:-$RANDOM}
say "cutting the power of $kernel, seed $seed"
result=0
"$vm/erb-node-vm" writes "$PWD/scripts/vm/writes-test.sh" "$sockets" --kernel "$kernel" --cuts "$cuts" \
	--seconds "${ERB_SECONDS:-400}" --seed "$seed" ${ERB_LYING:+--lying} 2>&1 | tee "$vm/writes.log" || result=$?
rm -r "$sockets"
[ "$result" = 0 ] || die "not all is as it should be: see $vm/writes.log, and $vm/log for the last guest"
[ -n "${ERB_LYING:-}" ] || say "what is promised held"
